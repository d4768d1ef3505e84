"""The chat request of the OpenAI API, as far as it can be honoured."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from replicas.errors import RequestError
from replicas.request import Grammar, SamplingParams
from serve_app.chat_messages import Message, turns_of
from serve_app.generation import Prompt
from serve_app.guidance import only_one
from serve_app.hermes_parser import CLOSE
from serve_app.openai_protocol import NEUTRAL, GenerationOptions, LogprobCount
from serve_app.sampling_defaults import OPENAI_DEFAULTS, SamplingDefaults
from serve_app.tool_protocol import Tool, ToolChoice, call_grammar, offered_tools

CHAT_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **NEUTRAL,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}


class ChatCompletionRequest(GenerationOptions):
    """Body of /v1/chat/completions."""

    unsupported: ClassVar[Mapping[str, tuple[object, ...]]] = CHAT_NEUTRAL

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    """False: the answer ends after its first call."""

    @property
    def offered_tools(self) -> tuple[dict[str, Any], ...]:
        """Those that the model is told of. Raises RequestError."""
        return offered_tools(self.tools, self.tool_choice)

    def grammar(self) -> Grammar | None:
        given = super().grammar()
        called = call_grammar(self.tools or [], self.tool_choice, self.parallel_tool_calls is False)
        return self.checked_grammar(only_one([grammar for grammar in (given, called) if grammar is not None]))

    def prompt_and_sampling(self, defaults: SamplingDefaults = OPENAI_DEFAULTS) -> tuple[Prompt, SamplingParams]:
        """What to generate. Raises RequestError if two options contradict each other."""
        limits = {limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None}
        if len(limits) > 1:
            raise RequestError(
                f"max_tokens is {self.max_tokens} but max_completion_tokens is {self.max_completion_tokens}; "
                "allowed: one of them",
                "max_tokens",
            )
        if self.top_logprobs and not self.logprobs:
            raise RequestError("top_logprobs is only allowed when logprobs is true", "top_logprobs")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        sampling = self.sampling(next(iter(limits), None), logprobs, defaults)
        if self.offered_tools and self.parallel_tool_calls is False and sampling.grammar is None:
            sampling = replace(sampling, stop=(*sampling.stop, CLOSE))
        return turns_of(self.messages), sampling
