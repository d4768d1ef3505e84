"""The table, and its place in the README."""

from pathlib import Path

import pytest

from benchmarks.peers.table import BEGIN, END, PUBLISHED, README, in_readme, publish, race_report
from benchmarks.results import Results, append_rows, read_results
from replicas.errors import ConfigError
from tests.benchmarks.peers.made_rows import OURS, PLAIN, SLOW, row, session

ROWS = [
    session("s1", ("eyrie", "llama.cpp")),
    *(row(OURS, at, 10, steps=8) for at in range(3)),
    *(row(PLAIN, at, 16) for at in range(3)),
    *(row(SLOW, at, 20, "other") for at in range(3)),
]


def results(tmp_path: Path) -> tuple[Path, Results]:
    path = tmp_path / "rows.jsonl"
    append_rows(path, ROWS)
    return path, read_results(path)


def test_a_row_a_contestant_and_where_it_was_measured(tmp_path: Path) -> None:
    report = race_report(results(tmp_path)[1]).splitlines()
    assert report[0].startswith("tiny, one request at a time, greedy, ")
    assert "at most 11 tokens" in report[0]
    assert report[4:7] == [
        "| **Eyrie, its K schedule** | 10.0 | 1 |  | 100 | 1.25 | 3/3 |",
        "| Eyrie, K=0 | 16.0 | 0.62 | 0.62 to 0.62 | 100 | 1.00 | 3/3 |",
        "| llama.cpp, F16 | 20.0 | 0.50 | 0.50 to 0.50 | 100 | 1.00 | 0/3 |",
    ]
    assert report[8:] == [
        "* 2026-12-01, commit abc, a machine, 2 threads; eyrie: eyrie-package 1.0; llama.cpp: llama.cpp-package 1.0. "
        "`python -m benchmarks.peers s1`"
    ]


def test_rows_without_a_race_have_no_table() -> None:
    with pytest.raises(ConfigError, match="no answers of a race"):
        race_report(Results())


def test_publishing_replaces_what_is_between_the_marks_and_keeps_the_rows(tmp_path: Path) -> None:
    path, found = results(tmp_path)
    readme, published = tmp_path / "README.md", tmp_path / "docs" / "peers.jsonl"
    readme.write_text(f"# Before\n\n{BEGIN}\n\nan old table\n\n{END}\n\nafter\n")
    publish(path, found, readme, published)
    text = readme.read_text()
    assert text == f"# Before\n\n{BEGIN}\n\n{race_report(found)}\n\n{END}\n\nafter\n"
    assert published.read_bytes() == path.read_bytes()
    publish(published, found, readme, published)
    assert readme.read_text() == text


def test_a_readme_without_marks_is_left_as_it_is(tmp_path: Path) -> None:
    path, found = results(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text(f"# Before\n\n{BEGIN}\n")
    with pytest.raises(ConfigError, match="lacks the marks"):
        publish(path, found, readme, tmp_path / "peers.jsonl")
    assert readme.read_text() == f"# Before\n\n{BEGIN}\n"
    assert not (tmp_path / "peers.jsonl").exists()


def test_the_readmes_table_is_that_of_the_committed_rows() -> None:
    text = README.read_text(encoding="utf-8")
    assert in_readme(text, race_report(read_results(PUBLISHED))) == text
