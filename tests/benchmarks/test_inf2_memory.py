from pathlib import Path

from benchmarks.inf2_memory import RANKS, plan, table
from benchmarks.published_models import LLAMA_31_8B, PAIRS


def test_the_page_holds_what_the_command_prints() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "inf2.md").read_text(encoding="utf-8")
    assert table() in page


def test_an_8b_model_needs_both_cores_of_a_chip() -> None:
    for pair in PAIRS:
        assert [plan(pair, ranks).sequences_that_fit > 0 for ranks in RANKS] == [False, True, True, True]


def test_more_ranks_leave_room_for_more_sequences() -> None:
    fits = [plan(LLAMA_31_8B, ranks).sequences_that_fit for ranks in RANKS]
    assert fits == sorted(fits)
    assert fits[-1] > 6 * fits[1]
