"""configs/grafana/eyrie.json against the names that are exported."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import ray.serve

from serve_app.metric_definitions import METRICS

DASHBOARD = Path(__file__).resolve().parents[2] / "configs" / "grafana" / "eyrie.json"
OF_HISTOGRAM = ("_bucket", "_count", "_sum")


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def queries(dashboard: dict[str, Any]) -> list[str]:
    of_panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return of_panels + [item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]


def names_in(queries: list[str], prefix: str) -> set[str]:
    return {name for query in queries for name in re.findall(rf"\b{prefix}\w+", query)}


def test_every_name_is_exported_and_every_metric_is_shown(queries: list[str]) -> None:
    shown = {
        metric.exported: {metric.exported + end for end in OF_HISTOGRAM}
        if metric.kind == "histogram"
        else {metric.exported}
        for metric in METRICS
    }
    used = names_in(queries, "ray_eyrie_")
    assert used <= set[str]().union(*shown.values())
    assert [name for name, forms in shown.items() if not used & forms] == []


def test_labels_are_those_that_the_metrics_have(queries: list[str]) -> None:
    tags_of = {
        metric.exported: {"model_name", "deployment", "replica", "application", *metric.tags} for metric in METRICS
    }
    for query in queries:
        for name, matchers in re.findall(r"(ray_eyrie_\w+)\{([^}]*)\}", query):
            exported = name if name in tags_of else name.rsplit("_", 1)[0]
            assert set(re.findall(r"(\w+)=~?\"", matchers)) <= tags_of[exported]


def test_serve_s_own_names_are_in_serve(queries: list[str]) -> None:
    folder = Path(ray.serve.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.py")).replace(
        "{protocol_name}", "http"
    )
    names = names_in(queries, "ray_serve_")
    assert len(names) == 2
    for name in names:
        assert name.removeprefix("ray_").removesuffix("_total") in source, name


def test_panels_lie_side_by_side(dashboard: dict[str, Any]) -> None:
    cells = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(cells)) == len(cells)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(cells)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in dashboard["panels"])
