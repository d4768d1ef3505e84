"""From a prompt, in whichever form it came, to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from replicas.errors import RequestError
from serve_app.engine_protocol import Codec
from serve_app.generation import ChatMessage, Prompt
from serve_app.hermes_prompt import messages_with_tools


def token_ids_of(
    codec: Codec,
    prompt: Prompt,
    tools: Sequence[Mapping[str, Any]] = (),
    add_special_tokens: bool = True,
    add_generation_prompt: bool = True,
) -> tuple[int, ...]:
    """Tokens of a text, of a chat through its template, or the ids themselves.

    Raises RequestError for ids that the model does not have, and for a chat that its template refuses.
    """
    if isinstance(prompt, str):
        return tuple(codec.encode(prompt, add_special_tokens))
    turns = [turn for turn in prompt if isinstance(turn, ChatMessage)]
    if turns:
        return tuple(_chat_ids(codec, turns, tools, add_generation_prompt))
    token_ids = tuple(part for part in prompt if isinstance(part, int))
    check_token_ids(token_ids, codec.vocab_size, "prompt")
    return token_ids


def _chat_ids(
    codec: Codec, turns: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], add_generation_prompt: bool
) -> list[int]:
    messages: Sequence[Mapping[str, Any]] = [turn.as_template_data() for turn in turns]
    if tools or any(turn.tool_calls or turn.role == "tool" for turn in turns):
        if codec.tool_format == "other":
            raise RequestError("this model's chat template writes tool calls in a format that is not Hermes'", "tools")
        if codec.tool_format is None:
            return codec.encode_chat(messages_with_tools(messages, tools), add_generation_prompt)
    return codec.encode_chat(messages, add_generation_prompt, tools)


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises RequestError for an id beyond the vocabulary: the embedding would fail on it, and the engine with it."""
    wrong = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"{param} holds the token id {wrong}; allowed: 0 to {vocab_size - 1}", param)
