"""The only things that pass between scheduler and runner: what to run, and what came out. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """How one sequence chooses its tokens; all defaults resolved."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    """0 .. 2**31 - 1. The noise of a token depends on this and on its position alone."""

    @property
    def is_greedy(self) -> bool:
        """True if no randomness is asked for."""
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """True if top-k, top-p or min-p cut the distribution."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """One sequence's part of a batch."""

    request_id: str
    token_ids: tuple[int, ...]
    """Tokens to run: a chunk of the prompt, or the last token followed by its drafts."""
    start: int
    """Position of the first of them."""
    num_drafts: int
    """How many of them, at the end, are drafts to verify."""
    next_prompt_token: int | None
    """The prompt's token after the chunk, or None if the chunk's successor is to be sampled."""
    num_propose: int
    """How many of the batch's K new drafts this sequence takes."""
    block_table: tuple[int, ...]
    choice: TokenChoice


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Sequences that run in one device program."""

    sequences: tuple[SequencePlan, ...]
    num_speculative_tokens: int
    """K of the program: up to K drafts are verified a sequence (decode), then K are proposed."""
    is_prefill: bool
    copied_blocks: tuple[tuple[int, int], ...] = ()
    """KV blocks to copy before the program runs: from, to."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step: the decode batch, if any, and one batch for each chunk of a prompt."""

    batches: tuple[BatchPlan, ...]


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What a step did for one sequence."""

    token_ids: tuple[int, ...]
    """Accepted drafts and the recovered or bonus token; empty after an unfinished prompt."""
    draft_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results by request id."""

    sequences: Mapping[str, SequenceResult]
