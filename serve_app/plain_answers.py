"""An answer that is not streamed: all deltas of each choice as one, in OpenAI's shapes."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from starlette.responses import Response

from serve_app.generation import Delta
from serve_app.openai_logprobs import chat_logprobs, completion_logprobs
from serve_app.openai_responses import (
    AssistantMessage,
    CallingMessage,
    ChatChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    FunctionCall,
    MessageToolCall,
    usage_of,
)

Kind = Literal["chat", "completion"]


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all chunks of an answer have in common."""

    id: str
    created: int
    model: str


async def collected(stream: AsyncGenerator[Delta, None], num_choices: int) -> list[Delta]:
    """Each choice's deltas as one: its last, with the whole text and every token's score."""
    found: list[list[Delta]] = [[] for _ in range(num_choices)]
    async with aclosing(stream):
        async for delta in stream:
            found[delta.choice].append(delta)
    # deltas() raises rather than end before each choice has ended.
    return [_joined(of_choice) for of_choice in found]


def _joined(deltas: Sequence[Delta]) -> Delta:
    last = deltas[-1]
    scores = None if last.scores is None else tuple(score for delta in deltas for score in delta.scores or ())
    calls = tuple(call for delta in deltas for call in delta.tool_calls)
    return replace(last, text="".join(delta.text for delta in deltas), scores=scores, tool_calls=calls)


def plain_answer(kind: Kind, head: AnswerHead, choices: Sequence[Delta], method: str | None) -> Response:
    """The whole answer, whose `choices` are in order."""
    usage = usage_of(choices, method)
    answer: ChatCompletion | Completion
    if kind == "chat":
        chats = [_chat_choice(whole) for whole in choices]
        answer = ChatCompletion(id=head.id, created=head.created, model=head.model, choices=chats, usage=usage)
    else:
        texts = [_completion_choice(whole) for whole in choices]
        answer = Completion(id=head.id, created=head.created, model=head.model, choices=texts, usage=usage)
    return Response(answer.model_dump_json(), media_type="application/json")


def _chat_choice(whole: Delta) -> ChatChoice:
    logprobs = None if whole.scores is None else chat_logprobs(whole.scores)
    return ChatChoice(
        index=whole.choice, message=_message(whole), logprobs=logprobs, finish_reason=whole.finish_reason or "stop"
    )


def _message(whole: Delta) -> AssistantMessage | CallingMessage:
    if not whole.tool_calls:
        return AssistantMessage(content=whole.text)
    calls = [
        MessageToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in whole.tool_calls
    ]
    return CallingMessage(content=whole.text or None, tool_calls=calls)


def _completion_choice(whole: Delta) -> CompletionChoice:
    logprobs = None if whole.scores is None else completion_logprobs(whole.scores)
    return CompletionChoice(
        index=whole.choice, text=whole.text, logprobs=logprobs, finish_reason=whole.finish_reason or "stop"
    )
