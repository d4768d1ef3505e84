"""The report, from rows of a machine whose costs are known."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.fit.fit import fit_sweep
from benchmarks.fit.tables import cost_table, held_out_errors
from benchmarks.report.__main__ import main
from benchmarks.report.content import Findings, sections
from benchmarks.report.serving_figures import parse_prices, serving_figures
from benchmarks.results import Cell, append_row
from tests.benchmarks.synthetic_machine import PROVENANCE, SESSION, Machine
from tests.serve_app.k_schedules import schedule, write_schedule

MACHINE = Machine()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a sweep, its schedule and its verification."""
    folder = tmp_path_factory.mktemp("report")
    odd = replace(SESSION, provenance=PROVENANCE | {"commit": "<script>alert(1)</script>"})
    append_row(folder / "toy-cpu.jsonl", odd)
    for run in MACHINE.sweep([0, 1, 3], [1, 4], repeats=2).runs:
        append_row(folder / "toy-cpu.jsonl", run)
    (folder / "configs" / "k_schedules").mkdir(parents=True)
    write_schedule(folder / "configs" / "k_schedules" / "toy-cpu.yaml", best_fixed_k=1)
    for repeat in range(4):
        for batch in (1, 4):
            runs = [MACHINE.run(Cell(k, batch), repeat) for k in (0, 1)]
            scheduled = MACHINE.run(Cell(schedule().k_of(batch), batch), repeat, seed=1)
            for run in (*runs, replace(scheduled, cell=Cell(None, batch))):
                append_row(folder / "results" / "verifications" / "toy-cpu.jsonl", run)
    return folder


@pytest.fixture(scope="module")
def pages(folder: Path) -> tuple[str, str]:
    """HTML and Markdown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["toy-cpu.jsonl", "--price", "small=0.09", "--price", "large=0.76"]) == 0
    reports = folder / "results" / "reports"
    return (reports / "toy-cpu.html").read_text(), (reports / "toy-cpu.md").read_text()


def test_the_page_needs_nothing_beside_it(pages: tuple[str, str]) -> None:
    html, _ = pages
    assert not re.search(r"<script|<link|<img|<iframe|@import|src=|href=\"(?!#|data:)", html)
    # What looks like an address is the name of a format.
    for address in set(re.findall(r"https?://[^\s\"<>]+", html)):
        assert re.match(r"https?://(www\.w3\.org|purl\.org|creativecommons\.org|matplotlib\.org)/", address)


def test_every_chart_is_well_formed_and_says_what_it_shows(pages: tuple[str, str]) -> None:
    charts = re.findall(r"<svg.*?</svg>", pages[0], re.S)
    assert len(charts) == 4
    texts = [" ".join(ElementTree.fromstring(chart).itertext()) for chart in charts]
    heat_map, speedup, acceptance, latency = texts
    assert "K, draft tokens a step" in heat_map
    assert f"{1.05 * MACHINE.tpot_ms(1, 0):.1f}" in heat_map
    assert all(text in speedup for text in ("batch 1", "batch 4", "(1 + K alpha) / (1 + K overhead)"))
    assert "draft position" in acceptance
    assert "K = 3" in latency


def test_all_parts_are_there(pages: tuple[str, str]) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", pages[0])
    assert titles == [
        "In short",
        "The schedule",
        "TPOT by K and batch",
        "Speed-up, measured and predicted",
        "Acceptance by position",
        "Cost of a step",
        "Latency against throughput",
        "Dollars a million output tokens",
        "Where this comes from",
        "What the figures mean",
    ]
    assert titles == re.findall(r"^## (.*)$", pages[1], re.M)


def test_what_rows_say_is_escaped(pages: tuple[str, str]) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[0]


def test_markdown_has_the_figures(pages: tuple[str, str]) -> None:
    _, markdown = pages
    assert '{"num_speculative_tokens_per_batch_size": [[1, 3, 3], [4, 7, 1], [8, 256, 0]]}' in markdown
    assert "| batch | K | small, $0.09 an hour | large, $0.76 an hour |" in markdown
    assert "At no measured batch is the schedule slower than K = 0 by more than the noise." in markdown
    assert "python -m benchmarks.sweep x" in markdown


def test_the_model_of_a_step_is_tried_on_held_out_cells_where_there_are_enough(pages: tuple[str, str]) -> None:
    title = "Cost of a step"
    results = MACHINE.sweep([0, 1, 2], [1, 2, 4], repeats=2)
    fit = fit_sweep(results)
    [costs] = [
        one for one in sections(Findings(fit, serving_figures(results.runs), None, (), {})) if one.title == title
    ]
    assert costs.tables == (cost_table(fit), held_out_errors(fit))
    assert "Too few cells to hold one out" in pages[1]


def test_without_schedule_and_prices_their_parts_are_left_out(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "bare"
    assert main([str(folder / "toy-cpu.jsonl"), "--out", str(out)]) == 0
    markdown = out.with_name("bare.md").read_text()
    assert "The schedule" not in markdown
    assert "Dollars" not in markdown
    unverified = ["--schedule", str(folder / "configs" / "k_schedules" / "toy-cpu.yaml")]
    assert main([str(folder / "toy-cpu.jsonl"), "--out", str(out), *unverified]) == 0
    assert "This schedule has not been verified" in out.with_name("bare.md").read_text()


def test_dollars_a_million_tokens() -> None:
    run = MACHINE.run(Cell(0, 1), 0)
    [figures] = serving_figures([run]).values()
    assert figures.throughput == run.throughput.average
    assert figures.dollars_a_million(3.6) == pytest.approx(1e6 * 0.001 / figures.throughput)
    assert figures.ttft == pytest.approx(0.05)
    assert figures.tpot == pytest.approx(1e-3 * MACHINE.step_ms(1, 0), rel=0.02)


@pytest.mark.parametrize("text", ["small", "=3", "small=cheap", "small=-1", "small=0"])
def test_a_wrong_price_is_one_sentence(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="--price is"):
        parse_prices([text])
    assert main([str(folder / "toy-cpu.jsonl"), "--price", text]) == 1
    assert capsys.readouterr().err == f"--price is {text!r}; allowed: NAME=DOLLARS an hour, such as c7i.large=0.09\n"
