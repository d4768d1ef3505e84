"""Definitions of the figures, on traces made by hand."""

from benchmarks.timing import Answer, median_ratio, provenance


def test_tpot_leaves_out_the_first_token() -> None:
    answer = Answer(first_token=0.5, end_to_end=2.5, tokens=11)
    assert answer.tpot == 0.2
    assert answer.seconds_per_token == 2.5 / 11


def test_median_ratio_pairs_neighbours_so_that_drift_cancels() -> None:
    # The machine slows down threefold half-way; ours takes half of theirs throughout.
    ours = [1.0, 1.0, 3.0, 3.0, 3.0]
    theirs = [2.0, 2.0, 6.0, 6.0, 6.0]
    assert median_ratio(ours, theirs) == 0.5


def test_provenance_names_what_a_reader_needs_to_repeat_a_figure() -> None:
    facts = provenance()
    assert set(facts) == {"commit", "machine", "python", "torch", "transformers", "ray", "command"}
    assert facts["torch"].startswith("2.")
