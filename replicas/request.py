"""What a caller asks for, and what a step tells about it. Frozen: the scheduler keeps its own state."""

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]
"""error: the text left its grammar, because no token that the model has could go on."""

MAX_LOGPROBS = 20
"""Most alternatives a position that a request may ask for."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text has to be."""

    kind: Literal["json_schema", "regex", "choice", "structural_tag"]
    text: str
    """The schema, the expression, a JSON list of the strings to choose from, or xgrammar's structural tag in JSON."""
    param: str
    """The request's field that it came from, which errors name."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens and when to stop. Ranges are checked at the edge (serve_app.openai_protocol)."""

    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0: all tokens."""
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    """Taken once from the logit of every token that the output holds."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit as often as the output holds it."""
    repetition_penalty: float = 1.0
    """Divides positive logits, and multiplies negative ones, of the tokens that prompt or output hold."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    seed: int | None = None
    """None: a fresh one for each request."""
    min_tokens: int = 0
    """Until so many tokens are out, stop tokens cannot be chosen and stop strings do not end the text."""
    max_tokens: int | None = None
    """None: up to max_model_len."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_speculative_tokens: int | None = None
    """Upper bound of K for this request; 0 switches speculation off."""
    grammar: Grammar | None = None
    """Every token keeps the text within it, whatever K is."""
    logprobs: int | None = None
    """Report every output token's log-probability, and so many of the most likely ones (up to MAX_LOGPROBS)."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How speculation went for one request. A step is one decode step; the one that ends a prefill drafts nothing."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()
    """How often the draft at each position of a step was accepted; the counts never increase."""

    def after(self, drafted: int, accepted: int) -> "Acceptance":
        """The facts after one more decode step."""
        counts = list(self.accepted_by_position) + [0] * (drafted - len(self.accepted_by_position))
        for position in range(accepted):
            counts[position] += 1
        return Acceptance(self.steps + 1, self.drafted + drafted, self.accepted + accepted, tuple(counts))

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a step: 1 + accepted / steps."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, natural logarithms.

    They are the target's own: of its raw logits, at temperature 1 and before penalties, biases and filters (as vLLM's
    default, `raw_logprobs`), so that they do not depend on how tokens are chosen.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token id, log-probability) of the most likely tokens, as many as were asked for, the best first."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to one request."""

    request_id: str
    token_ids: tuple[int, ...]
    """New tokens. A stop token is counted among them, though it has no text."""
    text: str
    """New text; empty while a character is incomplete or a stop string may have begun."""
    num_prompt_tokens: int
    num_output_tokens: int
    """All so far."""
    acceptance: Acceptance
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of each of `token_ids`, if the request asked."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """Of each of the prompt's tokens, if the request asked; only in the first output. The first token's are None."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was found in the prefix cache."""
    queue_seconds: float | None = None
    """From its arrival until it first ran; None: not known."""
