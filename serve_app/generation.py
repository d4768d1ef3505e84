"""What the ingress and a replica say to each other. Small and frozen: a delta crosses a process boundary a step."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from replicas.request import FinishReason, SamplingParams


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn; the roles are those that the model's chat template knows."""

    role: str
    content: str
    tool_calls: tuple[tuple[str, str, str], ...] = ()
    """(id, function's name, its arguments as a JSON object) of each."""
    tool_call_id: str | None = None
    """Of the call that a tool answers."""

    def as_template_data(self) -> dict[str, Any]:
        """As chat templates know messages: arguments are data there, not text."""
        data: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            data["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.loads(arguments)}}
                for call_id, name, arguments in self.tool_calls
            ]
        return data if self.tool_call_id is None else data | {"tool_call_id": self.tool_call_id}


Prompt = str | tuple[int, ...] | tuple[ChatMessage, ...]
"""A text, token ids, or a chat."""


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One answer to generate. The replica tokenises: the ingress has no tokenizer."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    num_choices: int = 1
    """Answers to the one prompt; choice i > 0 of a sampled one has a seed of its own (serve_app.choices)."""
    http_request_id: str = ""
    """The x-request-id that it came with: its name in the logs, not always unique."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """Of a chat, in OpenAI's shape."""
    trace: tuple[tuple[str, str], ...] = ()
    """W3C trace context of the ingress's span, as (header, value); none where nothing is traced."""


@dataclass(frozen=True, slots=True)
class TokenizeJob:
    """A prompt to tokenise and no more."""

    prompt: Prompt
    add_special_tokens: bool = True
    """Of a text; a chat's come from its template."""
    add_generation_prompt: bool = True
    """Of a chat."""
    wants_strings: bool = False
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The answer to a TokenizeJob."""

    token_ids: tuple[int, ...]
    strings: tuple[str, ...] | None
    """As the vocabulary spells them."""


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """An output token with its log-probability. Tokens are bytes in UTF-8, since one may hold half a character."""

    token: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...]
    """The most likely tokens, the best first."""
    text_offset: int
    """Characters of the text before it."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model calls."""

    index: int
    """Among the choice's calls."""
    id: str
    name: str
    arguments: str
    """A JSON object."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added, and the counts so far."""

    text: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_speculative_tokens: int
    """The largest K of its steps: the model's, under the request's cap. A schedule may draft less."""
    steps: int
    drafted: int
    accepted: int
    mean_acceptance_length: float
    finish_reason: FinishReason | Literal["tool_calls"] | None
    scores: tuple[ScoredToken, ...] | None = None
    """Of the tokens that the step added, also of those whose text is held back; None if the request did not ask."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    choice: int = 0
    """Which of the job's choices it belongs to."""
    tool_calls: tuple["ToolCall", ...] = ()
    """Found in the text (serve_app.tool_call_stream), which lacks them."""
