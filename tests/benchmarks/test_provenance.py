"""Where a figure came from."""

from benchmarks.provenance import provenance


def test_provenance_names_what_a_reader_needs_to_repeat_a_figure() -> None:
    facts = provenance()
    assert set(facts) == {"commit", "machine", "threads", "python", "torch", "transformers", "ray", "command"}
    assert facts["torch"].startswith("2.")
