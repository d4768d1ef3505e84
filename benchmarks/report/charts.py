"""Charts as SVG, to stand inside a page. Their text stays text, in the page's font."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from benchmarks.fit.fit import Fit
from benchmarks.report.serving_figures import ServingFigures
from benchmarks.results import Cell

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "eyrie",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.labelcolor": "#222222",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
}
MEASURED, EXPECTED, SIMPLE = "#1b6ca8", "#2a9d6f", "#c8553d"
COLUMNS = 4
"""Small charts in a row."""


def tpot_heat_map(fit: Fit, context: int | None, schedule: Mapping[int, int]) -> str:
    """TPOT in ms over K and batch; `schedule` has the K of each batch, whose cell is framed."""
    ks, batches = fit.ks, fit.batches
    tpot = np.full((len(batches), len(ks)), np.nan)
    for row, batch in enumerate(batches):
        for column, k in enumerate(ks):
            cost = fit.costs.get(Cell(k, batch, context))
            tpot[row, column] = np.nan if cost is None else 1e3 * cost.tpot
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 1.0 * len(ks), 1.0 + 0.55 * len(batches)), layout="constrained")
        axes = figure.subplots()
        axes.grid(visible=False)
        # Within a batch K is compared, so the colour is relative to its best.
        relative = tpot / np.nanmin(tpot, axis=1, keepdims=True)
        worst = max(1.5, float(np.nanmax(relative)))
        axes.imshow(relative, cmap="YlOrRd", aspect="auto", vmin=1.0, vmax=worst)
        for row, batch in enumerate(batches):
            for column, k in enumerate(ks):
                if np.isnan(tpot[row, column]):
                    continue
                dark = relative[row, column] - 1.0 > 0.55 * (worst - 1.0)
                weight = "bold" if relative[row, column] == 1.0 else "normal"
                color = "white" if dark else "#222222"
                axes.text(column, row, f"{tpot[row, column]:.1f}", ha="center", va="center", color=color, weight=weight)
                if schedule.get(batch) == k:
                    frame = Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, fill=False, ec=MEASURED, lw=2.5)
                    axes.add_patch(frame)
        axes.set_xticks(range(len(ks)), [str(k) for k in ks])
        axes.set_yticks(range(len(batches)), [str(batch) for batch in batches])
        axes.set_xlabel("K, draft tokens a step")
        axes.set_ylabel("batch")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        return _svg(figure)


def speedup_curves(fit: Fit, context: int | None) -> str:
    """Speed-up over K = 0 by K, one chart a batch: measured, and both formulas."""
    with mpl.rc_context(STYLE):
        figure, charts = _grid(len(fit.batches))
        for index, (axes, batch) in enumerate(zip(charts, fit.batches, strict=True)):
            speedups = [fit.speedups[cell] for k in fit.ks if (cell := Cell(k, batch, context)) in fit.speedups]
            ks = [speedup.cell.k or 0 for speedup in speedups]
            measured = np.array([speedup.measured for speedup in speedups])
            # Of K = 0 to itself there is no uncertainty.
            low = [0.0 if not s.cell.k else max(s.measured - s.interval.low, 0.0) for s in speedups]
            high = [0.0 if not s.cell.k else max(s.interval.high - s.measured, 0.0) for s in speedups]
            spread = np.where(np.isfinite([low, high]), [low, high], 0.0)
            axes.axhline(1.0, color="#999999", lw=1)
            axes.plot(ks, [s.simple for s in speedups], "--", color=SIMPLE, label="(1 + K alpha) / (1 + K overhead)")
            axes.plot(ks, [s.expected for s in speedups], color=EXPECTED, label="acceptance by position, measured T")
            axes.errorbar(ks, measured, spread, fmt="o", ms=5, capsize=3, color=MEASURED, label="measured, 95 %")
            axes.set_title(f"batch {batch}", fontsize=11)
            axes.set_xticks(ks)
            axes.set_xlabel("K")
            if index % COLUMNS == 0:
                axes.set_ylabel("speed-up")
        figure.legend(*charts[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
        return _svg(figure)


def acceptance_chart(fit: Fit) -> str:
    """Share of steps whose drafts were accepted up to each position."""
    positions = np.arange(1, len(fit.acceptance.rates) + 1)
    rates = np.array(fit.acceptance.rates)
    bounds = np.array([[i.low, i.high] for i in fit.acceptance.intervals]).reshape(-1, 2)
    spread = np.clip(np.abs(bounds.T - rates), 0.0, 1.0)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.0), layout="constrained")
        axes = figure.subplots()
        axes.bar(positions, rates, 0.6, color=MEASURED, yerr=spread, ecolor="#333333", capsize=4)
        for position, (rate, top) in enumerate(zip(rates, bounds[:, 1], strict=True), 1):
            height = max(rate, top if np.isfinite(top) else rate)
            axes.text(position, height + 0.01, f"{rate:.2f}", ha="center", va="bottom")
        axes.grid(visible=False, axis="x")
        axes.set_xticks(positions)
        axes.set_xlabel("draft position")
        axes.set_ylabel("accepted up to it")
        axes.set_ylim(0, min(1.0, float(rates.max(initial=0.1)) * 1.3))
        return _svg(figure)


def latency_throughput(figures: Mapping[Cell, ServingFigures], ks: Sequence[int], context: int | None) -> str:
    """A line a K over the batches: TPOT against tokens a second of all requests."""
    colors = mpl.colormaps["viridis"](np.linspace(0.0, 0.9, max(len(ks), 2)))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for k, color in zip(ks, colors, strict=False):
            points = [
                figure_
                for cell, figure_ in sorted(figures.items(), key=lambda item: item[0].batch)
                if (cell.k, cell.context_tokens) == (k, context) and figure_.tpot is not None
            ]
            tpots = [1e3 * (point.tpot or 0.0) for point in points]
            throughputs = [point.throughput for point in points]
            axes.plot(tpots, throughputs, "o-", ms=5, color=color, label=f"K = {k}")
            if k == ks[0]:
                for point, x, y in zip(points, tpots, throughputs, strict=True):
                    axes.annotate(f"batch {point.cell.batch}", (x, y), (6, -12), textcoords="offset points", fontsize=9)
        axes.set_xlabel("TPOT of an answer, ms (median)")
        axes.set_ylabel("output tokens a second, all answers")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.legend(frameon=False)
        return _svg(figure)


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.7 * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel().tolist()
    for unused in axes[count:]:
        unused.set_visible(False)
    return figure, axes[:count]


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    # Inside HTML there is no XML declaration and no doctype.
    return svg[svg.index("<svg") :]
