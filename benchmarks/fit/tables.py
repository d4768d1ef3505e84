"""A fit as tables, which print as Markdown."""

from collections.abc import Sequence

from benchmarks.fit.bootstrap import Interval
from benchmarks.fit.fit import Fit
from benchmarks.fit.held_out import Errors
from benchmarks.results import Cell
from benchmarks.table import Table

CLOSE = 0.10
"""A prediction of a cell that is off by less is good."""


def cell_name(cell: Cell, contexts: Sequence[int | None]) -> tuple[str, ...]:
    """Batch, K, and the context if there are several."""
    name = (str(cell.batch), "schedule" if cell.k is None else str(cell.k))
    return name if len(contexts) == 1 else (str(cell.context_tokens or "as is"), *name)


def name_head(contexts: Sequence[int | None]) -> tuple[str, ...]:
    """Column names of `cell_name`."""
    return ("batch", "K") if len(contexts) == 1 else ("context", "batch", "K")


def acceptance_table(fit: Fit) -> Table:
    """Rates by position."""
    acceptance = fit.acceptance
    rows = [
        (str(position), f"{rate:.3f}", _between(low_high, 3), f"{acceptance.mean_length(position):.3f}")
        for position, (rate, low_high) in enumerate(zip(acceptance.rates, acceptance.intervals, strict=True), 1)
    ]
    return Table(("position", "accepted up to it", "95 %", "tokens a step with K = position"), rows)


def cost_table(fit: Fit) -> Table:
    """Milliseconds of a step by cell: all, draft and verify, and what a model of the other cells says."""
    predicted = {cell.cost.cell: cell for cell in fit.held_out}
    rows = [
        (
            *cell_name(cell, fit.contexts),
            _ms(cost.seconds),
            _between(Interval(1e3 * cost.interval.low, 1e3 * cost.interval.high), 2),
            _ms(cost.verify_seconds),
            _ms(cost.draft_seconds),
            f"{cost.tokens:.2f}",
            _ms(cost.tpot),
            f"{_ms(predicted[cell].predicted)} ({predicted[cell].error:+.1%})" if cell in predicted else "",
        )
        for cell, cost in fit.costs.items()
    ]
    head = ("T ms", "95 %", "verify ms", "draft ms", "tokens a step", "TPOT ms", "T held out (error)")
    return Table((*name_head(fit.contexts), *head), rows)


def speedup_table(fit: Fit) -> Table:
    """Measured speed-up beside both formulas."""
    rows = [
        (
            *cell_name(cell, fit.contexts),
            f"{speedup.measured:.2f}",
            _between(speedup.interval, 2),
            f"{speedup.simple:.2f} ({speedup.simple_error:+.0%})",
            f"{speedup.expected:.2f} ({speedup.expected_error:+.0%})",
            "" if speedup.answers is None else f"{speedup.answers:.2f}",
            _between(speedup.answers_interval, 2),
        )
        for cell, speedup in fit.speedups.items()
        if cell.k
    ]
    head = (
        "measured, decode steps",
        "95 %",
        "(1 + K alpha) / (1 + K overhead)",
        "from acceptance by position and T",
        "measured, whole answers",
        "95 %",
    )
    return Table((*name_head(fit.contexts), *head), rows)


def held_out_table(fit: Fit) -> Table:
    """Each cell measured, and predicted by a model of the others."""
    rows = [
        (
            *cell_name(one.cost.cell, fit.contexts),
            "edge" if one.is_edge else "interior",
            _ms(one.cost.seconds),
            _between(Interval(1e3 * one.cost.interval.low, 1e3 * one.cost.interval.high), 2),
            _ms(one.predicted),
            f"{one.error:+.1%}",
        )
        for one in fit.held_out
    ]
    return Table((*name_head(fit.contexts), "cell", "measured ms", "95 %", "predicted ms", "error"), rows)


def held_out_errors(fit: Fit) -> Table:
    """Absolute errors over all held-out cells, those inside the grid, and those at its edges."""
    parts = {
        "all": fit.held_out,
        "interior": tuple(one for one in fit.held_out if not one.is_edge),
        "edge": tuple(one for one in fit.held_out if one.is_edge),
    }
    head = ("held-out cells", "number", "median error", "largest error", "of", f"within {CLOSE:.0%}")
    rows = [_errors_row(name, Errors(cells), fit.contexts) for name, cells in parts.items() if cells]
    return Table(head, rows)


def _errors_row(name: str, errors: Errors, contexts: Sequence[int | None]) -> tuple[str, ...]:
    worst = zip(name_head(contexts), cell_name(errors.worst.cost.cell, contexts), strict=True)
    return (
        name,
        str(len(errors.cells)),
        f"{errors.median:.1%}",
        f"{abs(errors.worst.error):.1%}",
        ", ".join(f"{of} {value}" for of, value in worst),
        str(errors.within(CLOSE)),
    )


def held_out_sentence(fit: Fit) -> str:
    """How the model of T was tried, and what it is like."""
    if not fit.held_out:
        return "Too few cells to hold one out from the model of T(batch, K)."
    free = {0: "no row is"}.get(fit.model.free_rows, f"the first {fit.model.free_rows} rows are")
    return (
        "Held out: each cell is predicted by a model of T(batch, K) that was fitted to all others. An edge cell has "
        "the smallest or largest batch or K of the sweep: its prediction is extrapolation. Fitted to all cells, the "
        f"model's stairs are {fit.model.stair} rows wide, and {free} free."
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _between(interval: Interval, digits: int) -> str:
    if interval.high == float("inf"):
        return "unknown"
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"
