"""What a replica tells of itself, and that the names are those of the engine."""

from dataclasses import fields

from replicas.engine import EngineStats
from serve_app.replica_figures import TOLD, replica_figures


def test_every_figure_that_is_told_is_one_of_the_engine() -> None:
    assert {field.name for field in fields(EngineStats)} >= {*TOLD, "free_blocks", "total_blocks"}


def test_kv_use_is_a_part_of_the_blocks() -> None:
    figures = replica_figures({"running": 3, "free_blocks": 25, "total_blocks": 100}, 5.0)
    assert figures == {"running": 3.0, "kv_use": 0.75, "uptime_s": 5.0}
