"""Rows of a machine whose costs and whose drafter's luck are known."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from benchmarks.engine_client import EngineAnswer, LoopTrace, StepTime
from benchmarks.metrics import AnswerTrace, Chunk
from benchmarks.results import Cell, Results, Run, Session
from replicas.request import Acceptance

PROVENANCE = {"commit": "c0ffee", "machine": "synthetic", "threads": "2", "command": "python -m benchmarks.sweep x"}
SESSION = Session("s", "2026-01-01T00:00:00+00:00", "hash", "toy", "cpu", "eagle3", PROVENANCE)


@dataclass(frozen=True)
class Machine:
    """Milliseconds of a step, and the chance that each draft is right if those before it are."""

    fixed: float = 10.0
    row: float = 0.3
    stair: float = 3.0
    stair_rows: int = 6
    free_rows: int = 0
    draft: float = 0.8
    right: tuple[float, ...] = (0.6, 0.5, 0.4, 0.3, 0.3)
    noise: float = 0.02

    def draft_ms(self, k: int) -> float:
        return 0.5 + self.draft * k

    def step_ms(self, batch: int, k: int) -> float:
        rows = batch * (1 + k)
        return (
            self.fixed
            + self.row * max(rows - self.free_rows, 0)
            + self.stair * ceil(rows / self.stair_rows)
            + self.draft_ms(k)
        )

    def rates(self) -> list[float]:
        found: list[float] = []
        for chance in self.right:
            found.append(chance * (found[-1] if found else 1.0))
        return found

    def tpot_ms(self, batch: int, k: int) -> float:
        return self.step_ms(batch, k) / (1 + sum(self.rates()[:k]))

    def run(self, cell: Cell, repeat: int, answers: int = 6, tokens: int = 60, seed: int = 0) -> Run:
        """`answers` one after another, each with `batch - 1` more like it beside it."""
        k = cell.k or 0
        chance = random.Random(f"{cell} {repeat} {seed}")
        # The machine drifts from repeat to repeat, and all cells with it.
        drift = 1.0 + 0.1 * repeat
        steps: list[StepTime] = []
        done: list[EngineAnswer] = []
        for _ in range(answers):
            now = 0.05
            chunks = [Chunk(now, 1, True)]
            acceptance = Acceptance()
            while sum(chunk.tokens for chunk in chunks) < tokens:
                accepted = next((i for i in range(k) if chance.random() >= self.right[i]), k)
                acceptance = acceptance.after(k, accepted)
                seconds = 1e-3 * self.step_ms(cell.batch, k) * drift * chance.gauss(1.0, self.noise)
                now += seconds
                chunks.append(Chunk(now, 1 + accepted, True))
                steps.append(StepTime(seconds, 1e-3 * self.draft_ms(k) * drift, cell.batch * (1 + accepted)))
            count = sum(chunk.tokens for chunk in chunks)
            done.append(EngineAnswer(AnswerTrace(tuple(chunks)), (1,) * count, acceptance, 20, "length"))
        total = sum(answer.answer.end_to_end for answer in done)
        submitted = tuple(sum(answer.answer.end_to_end for answer in done[:index]) for index in range(len(done)))
        return Run("s", cell, repeat, LoopTrace(total, tuple(done), submitted, tuple(steps)), ("a",) * len(done))

    def sweep(self, ks: Sequence[int] = range(6), batches: Sequence[int] = (1, 2, 4, 8), repeats: int = 3) -> Results:
        """All cells."""
        cells = [Cell(k, batch) for batch in batches for k in ks]
        return Results((SESSION,), tuple(self.run(cell, repeat) for repeat in range(repeats) for cell in cells))
