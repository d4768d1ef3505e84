"""The raw logits from which an engine chose each token that it emitted."""

from collections.abc import Iterable

import torch
from torch import Tensor

from replicas.devices.selection import argmax
from replicas.engine import Engine
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.layers import AttentionInputs
from replicas.runner.model_runner import ModelRunner
from replicas.scheduling.step_plan import BatchPlan, StepPlan, StepResult


class EmittedLogits:
    """Looks over the shoulder of `engine`: stands in for its runner, and for the runner's target."""

    def __init__(self, engine: Engine) -> None:
        self.of: dict[tuple[str, int], Tensor] = {}
        """[vocab], by request and position of the token chosen."""
        assert isinstance(engine._runner, ModelRunner)
        self._runner = engine._runner
        engine._runner = self  # pyright: ignore[reportAttributeAccessIssue]
        self._target, self._runner._target = self._runner._target, self  # pyright: ignore[reportAttributeAccessIssue]
        self.rotary, self.config = self._target.rotary, self._target.config
        self._batches: list[Tensor] = []

    def forward(self, token_ids: Tensor, attention: AttentionInputs, cache: PagedCache) -> tuple[Tensor, Tensor | None]:
        return self._target.forward(token_ids, attention, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self._target.logits(hidden)
        self._batches.append(logits.clone())
        return logits

    def best(self, hidden: Tensor, below: int | None = None) -> Tensor:
        assert below is None
        return argmax(self.logits(hidden))

    def execute(self, plan: StepPlan) -> StepResult:
        self._batches.clear()
        result = self._runner.execute(plan)
        for batch, logits in zip(plan.batches, self._batches, strict=True):
            self._note(batch, logits, result)
        return result

    def _note(self, batch: BatchPlan, logits: Tensor, result: StepResult) -> None:
        choices = self._runner.programs.of(batch).choices
        for row, part in enumerate(batch.sequences):
            first = part.start + len(part.token_ids) - part.num_drafts
            for choice in range(len(result.sequences[part.request_id].token_ids)):
                self.of[part.request_id, first + choice] = logits[row * choices + choice]

    def differ_from(self, other: "EmittedLogits", requests: Iterable[str]) -> list[tuple[str, int]]:
        """Where the bits are not those that `other` saw for `requests`.

        Here there may be more: a run of accepted drafts can go past the end of an answer.
        """
        wanted = {key: logits for key, logits in other.of.items() if key[0] in set(requests)}
        return [key for key, logits in wanted.items() if not torch.equal(logits, self.of[key])]
