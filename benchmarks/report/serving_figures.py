"""What requests saw in each cell: latency, throughput, and what a million tokens cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.results import Cell, Run

SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """One cell over all repeats."""

    cell: Cell
    ttft: float
    """Median seconds to the first content."""
    tpot: float | None
    """Median seconds an output token; None if no answer had two."""
    throughput: float
    """Mean of the runs' output tokens a second."""
    peak_throughput: float
    """The best second of all runs."""

    def dollars_a_million(self, dollars_an_hour: float) -> float:
        """For a million output tokens at this throughput."""
        return dollars_an_hour / SECONDS_AN_HOUR / self.throughput * 1e6


def serving_figures(runs: Iterable[Run]) -> dict[Cell, ServingFigures]:
    """By cell."""
    by_cell: dict[Cell, list[Run]] = {}
    for run in runs:
        by_cell.setdefault(run.cell, []).append(run)
    return {cell: _figures(cell, of_cell) for cell, of_cell in by_cell.items()}


def parse_prices(texts: Iterable[str]) -> Mapping[str, float]:
    """Dollars an hour by instance, of NAME=DOLLARS texts. Raises ValueError, one sentence."""
    prices: dict[str, float] = {}
    for text in texts:
        name, _, dollars = text.rpartition("=")
        try:
            prices[name] = float(dollars)
        except ValueError:
            prices[name] = 0.0
        if not name or prices[name] <= 0:
            raise ValueError(f"--price is {text!r}; allowed: NAME=DOLLARS an hour, such as c7i.large=0.09")
    return prices


def _figures(cell: Cell, runs: list[Run]) -> ServingFigures:
    tpots = [tpot for run in runs for tpot in run.tpots if tpot is not None]
    throughputs = [run.throughput for run in runs]
    return ServingFigures(
        cell,
        median(answer.answer.first_token for run in runs for answer in run.trace.answers),
        median(tpots) if tpots else None,
        mean(throughput.average for throughput in throughputs),
        max(throughput.peak for throughput in throughputs),
    )
