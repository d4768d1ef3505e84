"""An agent's client, LangChain, over the HTTP application: chat, stream, tools, structured output. `make test-api`."""

import json
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from starlette.testclient import TestClient

from serve_app.api_keys import Access
from tests.serve_app.local_site import PIECES, TEXT, Site

CALL = ["Let me ", 'see.<tool_call>{"name": "weather", "argum', 'ents": {"city": "Köln"}}</tool_call>']


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"rain in {city}"


class Person(BaseModel):
    """Somebody."""

    name: str
    age: int


def model(pieces: list[str], **options: Any) -> tuple[ChatOpenAI, Site]:
    """LangChain's chat model, whose HTTP goes to an application in this process."""
    site = Site(pieces=pieces, max_model_len=4096, access=Access(is_open=True))
    local: Any = TestClient(site.app)

    def answer(request: httpx.Request) -> httpx.Response:
        found = local.request(request.method, request.url.path, content=request.read(), headers=dict(request.headers))
        return httpx.Response(found.status_code, headers=dict(found.headers), content=found.content)

    client = httpx.Client(transport=httpx.MockTransport(answer))
    chat = ChatOpenAI(
        model="m", base_url="http://test/v1", api_key="none", http_client=client, max_retries=0, **options
    )  # pyright: ignore[reportArgumentType]
    return chat, site


@pytest.mark.parametrize("streaming", [False, True])
def test_chat(streaming: bool) -> None:
    chat, _ = model(PIECES, temperature=0)
    if streaming:
        assert "".join(str(chunk.content) for chunk in chat.stream("hi")) == TEXT
    else:
        answer = chat.invoke("hi")
        assert answer.content == TEXT
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == 10


@pytest.mark.parametrize("streaming", [False, True])
def test_a_tool_is_called_and_its_result_sent_back(streaming: bool) -> None:
    chat, site = model(CALL)
    bound = chat.bind_tools([weather])
    if streaming:
        first, *rest = bound.stream("How is the weather in Köln?")
        answer: Any = first
        for chunk in rest:
            answer += chunk
    else:
        answer = bound.invoke("How is the weather in Köln?")
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Köln"})
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    said = AIMessage(answer.content, tool_calls=answer.tool_calls)
    assert bound.invoke([HumanMessage("?"), said, result]).tool_calls
    prompt = bytes(site.client.engine.requests[-1].prompt_token_ids).decode()
    assert "<tool_response>\nrain in Köln\n</tool_response>" in prompt


def test_structured_output() -> None:
    chat, site = model(['{"name": "Ada", ', '"age": 36}'])
    answer = chat.with_structured_output(Person, method="json_schema").invoke("Invent a person.")
    assert answer == Person(name="Ada", age=36)
    grammar = site.client.engine.requests[0].sampling.grammar
    assert grammar is not None
    assert json.loads(grammar.text)["required"] == ["name", "age"]
