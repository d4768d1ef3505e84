"""The only things that pass between scheduler and runner: what to run, and what came out. Immutable."""

from collections.abc import Mapping
from dataclasses import dataclass

from replicas.request import TokenLogprobs

FOREVER = 2**31 - 1
"""A position that no sequence reaches."""


@dataclass(frozen=True, slots=True)
class TokenBias:
    """Adds `value` to the logit of `token_id` wherever the chosen token's position is below `until`."""

    token_id: int
    value: float
    until: int = FOREVER


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """How one sequence chooses its tokens; all defaults resolved."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    """0 .. 2**31 - 1. The noise of a token depends on this and on its position alone."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    biases: tuple[TokenBias, ...] = ()
    """logit_bias, and min_tokens as -infinity for the stop tokens of the first positions."""
    num_prompt_tokens: int = 0
    """The penalties' counts of the output begin there."""
    num_logprobs: int | None = None
    """Alternatives to report of each chosen token; None: not even its own log-probability."""
    num_prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""

    @property
    def is_greedy(self) -> bool:
        """True if no randomness is asked for."""
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """True if top-k, top-p or min-p cut the distribution."""
        return not self.is_greedy and (self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0)

    @property
    def is_penalised(self) -> bool:
        """True if what can be chosen depends on the tokens before."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


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
    history: tuple[int, ...] = ()
    """The sequence's tokens without drafts, prompt and output, if a token is chosen and penalties must count them."""
    masks: tuple[bytes, ...] = ()
    """Tokens that a grammar allows at each choice: packed int32, bit i % 32 of word i // 32 is token i.

    Fewer than there are choices where a draft leaves the grammar: nobody uses what follows it. None without a grammar.
    """


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
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of each of `token_ids`, where they were asked for."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt's tokens that follow those that ran: of positions start + 1, start + 2, ..."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Results by request id."""

    sequences: Mapping[str, SequenceResult]
    program_seconds: float = 0.0
    """Spent in device programs, reading their tokens included."""
