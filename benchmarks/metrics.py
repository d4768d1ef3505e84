"""What the figures mean, for everything that measures here. Seconds throughout; counts are the server's own.

Definitions as in vLLM's and NVIDIA's benchmarks, where these agree; DESIGN's glossary otherwise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from math import ceil
from statistics import median
from typing import NamedTuple

from replicas.request import Acceptance


@dataclass(frozen=True, slots=True)
class Answer:
    """Seconds and counts of one request."""

    first_token: float
    """TTFT: from submission to the first content."""
    end_to_end: float
    tokens: int
    """Output tokens by the engine's or server's own count."""

    @property
    def tpot(self) -> float:
        """Seconds an output token after the first: (end-to-end - TTFT) / (tokens - 1). Needs two tokens."""
        return (self.end_to_end - self.first_token) / (self.tokens - 1)

    @property
    def seconds_per_token(self) -> float:
        """End-to-end seconds over output tokens, prefill included."""
        return self.end_to_end / self.tokens


class Chunk(NamedTuple):
    """What arrived at once: with speculation, several tokens."""

    seconds: float
    """Since the request was submitted."""
    tokens: int
    has_content: bool
    """False for a role alone, for half a character, for a stop token."""


@dataclass(frozen=True, slots=True)
class AnswerTrace:
    """One answer as it arrived, chunk by chunk."""

    chunks: tuple[Chunk, ...]

    @property
    def answer(self) -> Answer:
        """TTFT to the first chunk with content; without any content, to the first with tokens."""
        first = next((chunk for chunk in self.chunks if chunk.has_content), None)
        first = first or next(chunk for chunk in self.chunks if chunk.tokens)
        return Answer(first.seconds, self.chunks[-1].seconds, sum(chunk.tokens for chunk in self.chunks))

    @property
    def chunk_gaps(self) -> list[float]:
        """The pauses that a reader sees: between chunks with tokens."""
        return [after.seconds - before.seconds for before, after in pairwise(self._told)]

    @property
    def inter_token_latencies(self) -> list[float]:
        """ITL, one a token after the first chunk: the n tokens of a chunk took an n-th of its gap each."""
        return [
            (after.seconds - before.seconds) / after.tokens
            for before, after in pairwise(self._told)
            for _ in range(after.tokens)
        ]

    @property
    def _told(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.tokens]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Output tokens a second of everything that ran together."""

    average: float
    peak: float
    """In the best of equal windows of at most a second; so it is never below the average."""

    @staticmethod
    def of(events: Iterable[tuple[float, int]], seconds: float) -> "Throughput":
        """From (moment, tokens) of every chunk within a run of `seconds`, which begins at 0."""
        count = max(1, ceil(seconds))
        window = seconds / count
        totals = [0] * count
        for moment, tokens in events:
            totals[min(int(moment / window), count - 1)] += tokens
        return Throughput(sum(totals) / seconds, max(totals) / window)


def pooled(acceptances: Iterable[Acceptance]) -> Acceptance:
    """The facts of several requests together."""
    together = list(acceptances)
    by_position = zip_longest(*(one.accepted_by_position for one in together), fillvalue=0)
    return Acceptance(
        sum(one.steps for one in together),
        sum(one.drafted for one in together),
        sum(one.accepted for one in together),
        tuple(sum(counts) for counts in by_position),
    )


def acceptance_rate(acceptance: Acceptance) -> float:
    """alpha: drafts of the accepted prefix over all drafts; 0 where nothing was drafted."""
    return acceptance.accepted / acceptance.drafted if acceptance.drafted else 0.0


def acceptance_by_position(acceptance: Acceptance, k: int) -> tuple[float, ...]:
    """Share of the steps whose prefix up to position 1, 2, ... K was accepted: it never increases.

    Its sum is what a step adds to the one token that it gives anyway: 1 + sum = mean acceptance length.
    """
    counts = (*acceptance.accepted_by_position, *[0] * k)[:k]
    return tuple(count / max(acceptance.steps, 1) for count in counts)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the ratios of pairs that were measured next to each other."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))
