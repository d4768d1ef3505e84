"""Requests of the OpenAI API, as far as they can be honoured. What cannot be is refused by name, never ignored."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from replicas.config import MAX_SPECULATIVE_TOKENS
from replicas.errors import RequestError
from replicas.request import MAX_LOGPROBS, Grammar, SamplingParams
from serve_app.generation import Prompt
from serve_app.guidance import Choices, ResponseFormat, grammar_of
from serve_app.request_model import RequestBody, without_neutral
from serve_app.sampling_defaults import (
    OPENAI_DEFAULTS,
    MinP,
    RepetitionPenalty,
    SamplingDefaults,
    Temperature,
    TopP,
)
from serve_app.untyped_data import list_or_none
from serve_app.validation_sentences import value_text

MAX_STOP_STRINGS = 4
MAX_CHOICES = 128
"""OpenAI's; a server may allow fewer."""
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions; a chat goes on up to max_model_len."""

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "metadata": ({},),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
"""Options that cannot be honoured, with the values that ask for nothing; null is always one."""

COMPLETION_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL,
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


class Speculation(RequestBody):
    """Ours: switches speculation off, or caps K, for one request."""

    enabled: bool = True
    num_speculative_tokens: Annotated[int, Field(ge=0, le=MAX_SPECULATIVE_TOKENS)] | None = None
    """The model's K if that is less; 0 is off."""

    @property
    def cap(self) -> int | None:
        """None: the model's K."""
        return self.num_speculative_tokens if self.enabled else 0


class StreamOptions(RequestBody):
    """Of a stream only."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    """As in vLLM, beside include_usage: every chunk has its choice's usage so far."""


def _stop_strings(value: object) -> object:
    strings = [value] if isinstance(value, str) else list_or_none(value)
    if strings is None or not all(isinstance(text, str) and text for text in strings):
        raise ValueError(f"got {value_text(value)}; it should be a non-empty string or a list of them")
    if len(strings) > MAX_STOP_STRINGS:
        raise ValueError(f"got {len(strings)} strings; allowed: at most {MAX_STOP_STRINGS}")
    return strings


STOP_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": MAX_STOP_STRINGS},
    ]
}


Number = TypeVar("Number", int, float)


def given_or(value: Number | None, default: Number) -> Number:
    """`value`, or `default` for null."""
    return default if value is None else value


def _all_tokens(top_k: int) -> int:
    # Clients of other servers say -1 for "all", SamplingParams says 0.
    return max(top_k, 0)


Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenKey = Annotated[int, Field(strict=False)]
"""A key of a JSON object, which only can be a string."""
LogprobCount = Annotated[int, Field(ge=0, le=MAX_LOGPROBS)]


class GenerationOptions(RequestBody):
    """What chat and plain completions have in common."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    """Choices; those after the first of a sampled request have seeds derived from its own."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Field(ge=-1), AfterValidator(_all_tokens)] | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    """Ours, as in vLLM: above 1 against tokens of the prompt and the output."""
    logit_bias: dict[TokenKey, Annotated[float, Field(ge=-100, le=100)]] | None = None
    """By token id."""
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    """Ours, as in vLLM: tokens before the model may stop."""
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[str], BeforeValidator(_stop_strings), WithJsonSchema(STOP_SCHEMA)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    """Of no effect, as the field has it: a name for the provider's own records."""
    speculation: Speculation | None = None
    response_format: ResponseFormat | None = None
    guided_regex: Annotated[str, Field(min_length=1)] | None = None
    """As in vLLM, like the next."""
    guided_choice: Choices | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        return without_neutral(data, cls.unsupported)

    @model_validator(mode="after")
    def _streams_only(self) -> "GenerationOptions":
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options is only allowed when stream is true", "stream_options")
        return self

    @property
    def offered_tools(self) -> tuple[dict[str, Any], ...]:
        """None: a plain text has no tools."""
        return ()

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream has usage, too."""
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats

    def grammar(self) -> Grammar | None:
        """What the text has to be. Raises RequestError."""
        grammar = grammar_of(self.response_format, self.guided_regex, self.guided_choice)
        return self.checked_grammar(grammar)

    def checked_grammar(self, grammar: Grammar | None) -> Grammar | None:
        """`grammar`. Raises RequestError for options that say otherwise where the text ends."""
        for name, value in (("ignore_eos", self.ignore_eos), ("min_tokens", self.min_tokens)):
            if grammar is not None and value:
                raise RequestError(f"{name} beside {grammar.param}, which says where the text ends", name)
        return grammar

    def sampling(self, max_tokens: int | None, logprobs: int | None, defaults: SamplingDefaults) -> SamplingParams:
        """For the engine; null is the model's default. Raises RequestError for options that contradict each other."""
        if max_tokens is not None and (self.min_tokens or 0) > max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}; allowed: at most the limit of {max_tokens} tokens", "min_tokens"
            )
        return SamplingParams(
            temperature=given_or(self.temperature, defaults.temperature),
            top_k=given_or(self.top_k, defaults.top_k),
            top_p=given_or(self.top_p, defaults.top_p),
            min_p=given_or(self.min_p, defaults.min_p),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=given_or(self.repetition_penalty, defaults.repetition_penalty),
            logit_bias=tuple((self.logit_bias or {}).items()),
            min_tokens=self.min_tokens or 0,
            grammar=self.grammar(),
            logprobs=logprobs,
            seed=self.seed,
            max_tokens=max_tokens,
            stop=tuple(self.stop or ()),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            num_speculative_tokens=None if self.speculation is None else self.speculation.cap,
        )


def _one_prompt(value: object) -> object:
    items = list_or_none(value) or []
    prompt: object = items[0] if [type(item) in (str, list) for item in items] == [True] else value
    token_ids = list_or_none(prompt)
    if (isinstance(prompt, str) and prompt) or (token_ids and all(type(token_id) is int for token_id in token_ids)):
        return prompt
    raise ValueError(
        f"got {value_text(value)}; it should be a non-empty string or list of token ids: one prompt a request"
    )


ONE_TEXT = {"type": "string", "minLength": 1}
TOKEN_LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
PROMPT_SCHEMA = {
    "anyOf": [ONE_TEXT, TOKEN_LIST, {"type": "array", "items": {"anyOf": [ONE_TEXT, TOKEN_LIST]}, "maxItems": 1}]
}


class CompletionRequest(GenerationOptions):
    """Body of /v1/completions."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = COMPLETION_NEUTRAL

    prompt: Annotated[str | list[int], BeforeValidator(_one_prompt), WithJsonSchema(PROMPT_SCHEMA)]
    logprobs: LogprobCount | None = None

    def prompt_and_sampling(self, defaults: SamplingDefaults = OPENAI_DEFAULTS) -> tuple[Prompt, SamplingParams]:
        """What to generate. Raises RequestError if two options contradict each other."""
        max_tokens = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        prompt = self.prompt if isinstance(self.prompt, str) else tuple(self.prompt)
        return prompt, self.sampling(max_tokens, self.logprobs, defaults)
