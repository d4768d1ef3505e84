"""Where a figure came from."""

import pytest

from benchmarks.provenance import provenance


def test_provenance_names_what_a_reader_needs_to_repeat_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    facts = provenance()
    versions = {"python", "torch", "transformers", "ray"}
    assert set(facts) == {"commit", "machine", "threads", "environment", "command"} | versions
    assert facts["environment"] == "GOMP_SPINCOUNT=7"
    assert facts["torch"].startswith("2.")
