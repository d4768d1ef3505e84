"""Who chooses K: the scheduler asks before each step, serve_app or a benchmark injects the answer."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from replicas.errors import ConfigError
from replicas.scheduling.step_plan import BatchPlan, StepResult


@dataclass(frozen=True, slots=True)
class DraftFeedback:
    """What became of the drafts of one decode step."""

    batch_size: int
    """Sequences that decoded."""
    drafted_by_position: tuple[int, ...]
    """Sequences that had a draft at position 1, 2, ... to verify; never increases."""
    accepted_by_position: tuple[int, ...]
    """Those of them whose drafts were accepted up to that position."""


class KPolicy(Protocol):
    """Number of draft tokens by batch size. Its answers change only between steps, when it is told of one."""

    def num_speculative_tokens(self, batch_size: int) -> int:
        """K for a step over `batch_size` decoding sequences; one of those that the engine has programs for."""
        ...

    def observe(self, feedback: DraftFeedback) -> None:
        """Hear of a decode step that is over."""
        ...


def allowed_k(policy: KPolicy, batch_size: int, allowed: Collection[int]) -> int:
    """What `policy` says for `batch_size`. Raises ConfigError for a K that is not among `allowed`."""
    k = policy.num_speculative_tokens(batch_size)
    if k not in allowed:
        raise ConfigError(
            f"the K policy wants {k} draft tokens (num_speculative_tokens) for a batch of {batch_size}; "
            f"this engine was built for {sorted(allowed)}"
        )
    return k


def draft_feedback(batch: BatchPlan, result: StepResult) -> DraftFeedback:
    """Of a decode batch and what it brought about."""
    drafted = [part.num_drafts for part in batch.sequences]
    accepted = [len(result.sequences[part.request_id].token_ids) - 1 for part in batch.sequences]
    positions = range(max(drafted))
    return DraftFeedback(
        len(batch.sequences),
        tuple(sum(count > position for count in drafted) for position in positions),
        tuple(sum(count > position for count in accepted) for position in positions),
    )
