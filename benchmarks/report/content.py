"""What stands in a report, before it is HTML or Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.choose_k import as_vllm
from benchmarks.fit.fit import Fit
from benchmarks.fit.tables import (
    acceptance_table,
    cell_name,
    cost_table,
    held_out_errors,
    held_out_sentence,
    name_head,
    speedup_table,
)
from benchmarks.report.charts import acceptance_chart, latency_throughput, speedup_curves, tpot_heat_map
from benchmarks.report.serving_figures import ServingFigures
from benchmarks.results import Cell, Session
from benchmarks.table import Table
from benchmarks.verify_k_schedule import Verdict, verdict_table
from serve_app.k_schedule import KSchedule

VLLM_MAX_NUM_SEQS = 256


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with text, charts and tables below it."""

    title: str
    paragraphs: tuple[str, ...] = ()
    charts: tuple[str, ...] = ()
    """SVG; a Markdown report has none of them."""
    tables: tuple[Table, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """All that a report is made of."""

    fit: Fit
    figures: Mapping[Cell, ServingFigures]
    schedule: KSchedule | None
    verdicts: Sequence[Verdict]
    prices: Mapping[str, float]
    """Dollars an hour by instance."""


def sections(findings: Findings) -> list[Section]:
    """The report from top to bottom."""
    fit = findings.fit
    found = [
        _summary(findings),
        *_schedule(findings),
        _heat_maps(findings),
        Section(
            "Speed-up, measured and predicted",
            (
                "Measured: TPOT of K = 0 over that of K, in steps that decode a full batch and prefill nothing. "
                "The dashed formula takes verifying 1 + K tokens to cost what decoding one does; the other one has "
                "the tokens a step from acceptance by position, and the measured time of a step. Errors against "
                f"the measurement: {_mean_error(fit, simple=True):.0%} and {_mean_error(fit, simple=False):.0%} "
                "in the mean of absolute values.",
            ),
            tuple(speedup_curves(fit, context) for context in fit.contexts),
            (speedup_table(fit),),
        ),
        Section(
            "Acceptance by position",
            ("Pooled over all batches. Intervals are by bootstrap over answers.",),
            (acceptance_chart(fit),),
            (acceptance_table(fit),),
        ),
        Section(
            "Cost of a step",
            (held_out_sentence(fit), _refresh_sentence(fit)),
            (),
            (cost_table(fit), *([held_out_errors(fit)] if fit.held_out else [])),
        ),
        _latency(findings),
        _prices(findings),
        Section("Where this comes from", (), (), (_sessions(fit.sessions),)),
        Section("What the figures mean", DEFINITIONS),
    ]
    return [section for section in found if section.paragraphs or section.tables or section.charts]


DEFINITIONS = (
    "TTFT: from submission to the first content. TPOT: (end-to-end - TTFT) / (output tokens - 1), by the engine's "
    "count. In decode steps alone: T / (tokens a step), without others' prompts in between.",
    "T(batch, K): seconds of a step that decodes a full batch and prefills nothing, the mean without the 5 % fastest "
    "and slowest steps. Draft: the drafter's part of it. Verify: all the rest.",
    "Accepted: the prefix of a step's drafts that the target would have chosen itself. alpha: accepted / drafted. "
    "Tokens a step: 1 + accepted / steps. Overhead: time of one draft token over T(batch, 0).",
    "Throughput: output tokens of all answers over the whole run, prompts and the run's beginning and end included. "
    "The peak is the best window of at most a second.",
)


def _summary(findings: Findings) -> Section:
    fit, last = findings.fit, findings.fit.sessions[-1]
    best = max((s for s in fit.speedups.values() if s.cell.k), key=lambda s: s.measured, default=None)
    lines = [
        f"{last.model} with {last.method or 'no drafter'} on {last.device}: {last.provenance['machine']}, "
        f"{last.provenance['threads']} threads. {len(fit.costs)} cells."
    ]
    if best is not None:
        lines.append(
            f"The largest speed-up is {best.measured:.2f} (95 %: {best.interval}), at batch {best.cell.batch} "
            f"with K = {best.cell.k}: {1e3 * fit.costs[best.cell].tpot:.1f} ms an output token."
        )
    if findings.verdicts:
        losing = [verdict.batch for verdict in findings.verdicts if verdict.is_slower]
        lines.append(
            f"The schedule is slower than K = 0 at batch {', '.join(map(str, losing))}."
            if losing
            else "At no measured batch is the schedule slower than K = 0 by more than the noise."
        )
    return Section("In short", tuple(lines))


def _schedule(findings: Findings) -> list[Section]:
    schedule = findings.schedule
    if schedule is None:
        return []
    rows = [(str(bucket.from_batch), str(bucket.k)) for bucket in schedule.buckets]
    tables = [Table(("from batch", "K"), rows)]
    if findings.verdicts:
        tables.append(verdict_table(findings.verdicts))
    vllm = {"num_speculative_tokens_per_batch_size": as_vllm(schedule, VLLM_MAX_NUM_SEQS)}
    paragraphs = ["K by the number of decoding sequences. The same for vLLM's speculative config:"]
    if not findings.verdicts:
        paragraphs.insert(0, "This schedule has not been verified: no rows of a verification were given.")
    return [Section("The schedule", tuple(paragraphs), (), tuple(tables), json.dumps(vllm))]


def _heat_maps(findings: Findings) -> Section:
    fit = findings.fit
    chosen = {batch: findings.schedule.k_of(batch) for batch in fit.batches} if findings.schedule else {}
    framed = " The schedule's choice is framed." if chosen else ""
    text = "Milliseconds in decode steps alone. Colours compare K within a batch; the best is bold." + framed
    charts = tuple(tpot_heat_map(fit, context, chosen) for context in fit.contexts)
    return Section("TPOT by K and batch", (text,), charts, tuple(_tpot_table(fit, context) for context in fit.contexts))


def _tpot_table(fit: Fit, context: int | None) -> Table:
    rows = [
        (
            str(batch),
            *(
                f"{1e3 * fit.costs[cell].tpot:.2f}" if (cell := Cell(k, batch, context)) in fit.costs else ""
                for k in fit.ks
            ),
        )
        for batch in fit.batches
    ]
    return Table(("batch", *(f"K = {k}" for k in fit.ks)), rows)


def _refresh_sentence(fit: Fit) -> str:
    plain = [cost.draft_seconds for cell, cost in fit.costs.items() if cell.k == 0]
    return (
        f"At K = 0 the drafter still keeps its KV up to date, so that K may rise at any step: "
        f"{1e3 * min(plain):.2f} to {1e3 * max(plain):.2f} ms of a step. An engine without a drafter spares them."
    )


def _latency(findings: Findings) -> Section:
    fit = findings.fit
    cells = {cell: figure for cell, figure in findings.figures.items() if cell in fit.costs}
    rows = [
        (
            *cell_name(figure.cell, fit.contexts),
            f"{1e3 * figure.ttft:.0f}",
            "" if figure.tpot is None else f"{1e3 * figure.tpot:.2f}",
            f"{figure.throughput:.1f}",
            f"{figure.peak_throughput:.1f}",
        )
        for figure in (findings.figures[cell] for cell in fit.costs)
    ]
    head = ("TTFT ms", "TPOT ms", "tokens a second", "peak")
    return Section(
        "Latency against throughput",
        ("As requests see it, with others' prompts in between: a closed loop of as many requests as the batch has.",),
        tuple(latency_throughput(cells, fit.ks, context) for context in fit.contexts),
        (Table((*name_head(fit.contexts), *head), rows),),
    )


def _prices(findings: Findings) -> Section:
    if not findings.prices:
        return Section("Cost", ())
    fit = findings.fit
    head = [f"{name}, ${price:g} an hour" for name, price in findings.prices.items()]
    rows = [
        (
            *cell_name(cell, fit.contexts),
            *(f"{findings.figures[cell].dollars_a_million(price):.2f}" for price in findings.prices.values()),
        )
        for cell in fit.costs
    ]
    return Section(
        "Dollars a million output tokens",
        (
            "At the throughput that was measured here, for the hourly prices that were given: true of an instance "
            "that is as fast as this machine and always busy.",
        ),
        (),
        (Table((*name_head(fit.contexts), *head), rows),),
    )


def _sessions(sessions: Sequence[Session]) -> Table:
    keys = list(dict.fromkeys(key for session in sessions for key in session.provenance if key != "command"))
    rows = [
        (
            session.began,
            session.config_hash,
            *(session.provenance.get(key, "") for key in keys),
            session.provenance["command"],
        )
        for session in sessions
    ]
    return Table(("began", "config hash", *keys, "command"), rows)


def _mean_error(fit: Fit, simple: bool) -> float:
    speedups = [speedup for cell, speedup in fit.speedups.items() if cell.k]
    return mean(abs(s.simple_error if simple else s.expected_error) for s in speedups) if speedups else 0.0
