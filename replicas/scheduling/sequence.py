"""A request while it lives in the scheduler, which alone changes it."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from replicas.request import Acceptance, FinishReason, GenerationRequest, TokenLogprobs
from replicas.scheduling.step_plan import TokenChoice


class TextSink(Protocol):
    """Incremental text of a sequence (replicas.text_codec.TextStream)."""

    def push(self, token_id: int, may_stop: bool = True) -> bool:
        """Add a token; True when a stop string is complete, unless none `may_stop` the text yet."""
        ...

    def take(self) -> str:
        """Text that is certain by now and was not taken before."""
        ...

    def finish(self) -> None:
        """Nothing follows: make available what was held back."""
        ...


class TokenFilter(Protocol):
    """The grammar of a sequence (replicas.structured_output.TokenMatcher)."""

    def masks(self, drafts: tuple[int, ...]) -> tuple[bytes, ...]:
        """Tokens that may come next, and after each draft, as SequencePlan.masks."""
        ...

    def accept(self, token_id: int) -> bool:
        """Go on by one token; False if it may not come."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, blocks and progress of one request."""

    request: GenerationRequest
    choice: TokenChoice
    text: TextSink | None
    stop_token_ids: frozenset[int]
    max_length: int
    """Tokens at which it ends with finish reason `length`."""
    token_ids: list[int]
    num_computed: int = 0
    """Tokens whose KV is in the cache."""
    drafts: tuple[int, ...] = ()
    blocks: list[int] = field(default_factory=list[int])
    block_identities: list[bytes] = field(default_factory=list[bytes])
    """Of its full blocks (PrefixCache.extend)."""
    num_published: int = 0
    """How many of its blocks, from the first on, are shared or can be."""
    num_cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache when it first ran."""
    arrival: float = field(default_factory=time.perf_counter)
    queue_seconds: float | None = None
    """From its arrival until it first ran."""
    acceptance: Acceptance = field(default_factory=Acceptance)
    grammar: TokenFilter | None = None
    prompt_logprobs: list[TokenLogprobs] | None = field(default_factory=list[TokenLogprobs])
    """Of the prompt's tokens from the second on, as far as its chunks have run; None once they are told."""
    finish_reason: FinishReason | None = None

    @property
    def reuses_blocks(self) -> bool:
        """False where every position of the prompt has to run."""
        return self.request.sampling.prompt_logprobs is None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens that the caller gave."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """True if only its last token is not in the cache yet; otherwise it is still prefilling."""
        return 0 < self.num_computed == len(self.token_ids) - 1

    @property
    def draft_limit(self) -> int | None:
        """The request's own cap on K."""
        return self.request.sampling.num_speculative_tokens

    def append(self, token_ids: tuple[int, ...]) -> int:
        """Add new tokens up to the one that ends the sequence; returns how many were kept."""
        sampling = self.request.sampling
        for count, token in enumerate(token_ids, 1):
            if self.grammar is not None and not self.grammar.accept(token):
                self.finish_reason = "error"
                return count - 1
            self.token_ids.append(token)
            # Below min_tokens a stop token cannot be chosen (TokenChoice.biases), a stop string is text.
            may_stop = self.num_output_tokens > sampling.min_tokens
            if token in self.stop_token_ids or (self.text is not None and self.text.push(token, may_stop)):
                self.finish_reason = "stop"
                return count
            if len(self.token_ids) >= self.max_length or self.num_output_tokens == sampling.max_tokens:
                self.finish_reason = "length"
                return count
        return len(token_ids)

    def learn_prompt_logprobs(self, start: int, logprobs: tuple[TokenLogprobs, ...]) -> None:
        """Add those of the prompt's tokens after position `start`. What a preempted sequence runs again it knows."""
        if logprobs and self.prompt_logprobs is not None:
            known = len(self.prompt_logprobs) - start
            assert known >= 0, "tokens from a prefix cache have no logits: such a request must compute its whole prompt"
            self.prompt_logprobs += logprobs[known : self.num_prompt_tokens - 1 - start]

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """Those of the whole prompt, if the request asked and was not told yet."""
        if self.choice.num_prompt_logprobs is None or self.prompt_logprobs is None:
            return None
        taken, self.prompt_logprobs = self.prompt_logprobs, None
        return (None, *taken)
