"""Several choices: seeds, merged streams, and n over HTTP."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from replicas.request import GenerationRequest, SamplingParams
from serve_app.choices import choice_sampling, merged
from tests.serve_app.fake_engine import Script
from tests.serve_app.local_site import Site


def test_the_first_choice_is_the_one_that_n_1_gives() -> None:
    sampling = SamplingParams(seed=7)
    seeds = [choice_sampling(sampling, choice).seed for choice in range(64)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 64
    assert seeds == [choice_sampling(sampling, choice).seed for choice in range(64)]
    assert choice_sampling(SamplingParams(seed=8), 1).seed not in seeds


def test_without_a_seed_the_engine_draws_one_a_choice() -> None:
    assert choice_sampling(SamplingParams(), 3) == SamplingParams()


def test_merged_gives_every_item_and_each_streams_order() -> None:
    async def numbers(start: int, pause: int) -> AsyncGenerator[int, None]:
        for number in range(start, start + 5):
            for _ in range(pause):
                await asyncio.sleep(0)
            yield number

    async def collect() -> list[int]:
        return [item async for item in merged([numbers(0, 1), numbers(10, 3), numbers(20, 0)])]

    found = asyncio.run(collect())
    for start in (0, 10, 20):
        assert [number for number in found if start <= number < start + 5] == list(range(start, start + 5))
    assert len(found) == 15


@pytest.mark.parametrize("way", ["close", "error"])
def test_all_streams_are_closed_when_one_fails_or_nobody_listens(way: str) -> None:
    closed: list[str] = []

    async def endless(name: str) -> AsyncGenerator[str, None]:
        try:
            yield name
            if way == "error" and name == "b":
                raise ValueError(name)
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    async def leave() -> None:
        stream = merged([endless(name) for name in "abc"])
        for _ in range(3):
            await stream.__anext__()
        if way == "close":
            await stream.aclose()
        else:
            with pytest.raises(ValueError, match="b"):
                await stream.__anext__()

    asyncio.run(leave())
    assert sorted(closed) == ["a", "b", "c"]


def by_seed(request: GenerationRequest) -> Script:
    return [f"seed {request.sampling.seed}", " says", " so"]


@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
class TestOverHttp:
    """Both routes."""

    def body(self, route: str, **options: Any) -> dict[str, Any]:
        prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in route else {"prompt": "12345678"}
        return {"model": "m", **prompt, **options}

    def text(self, choice: dict[str, Any]) -> str:
        return choice["text"] if "text" in choice else choice["message"]["content"]

    def test_sampled_choices_differ_by_their_derived_seeds(self, route: str) -> None:
        site = Site(pieces=by_seed)
        answer = site.send("POST", route, json=self.body(route, n=3, seed=5)).json()
        seeds = [choice_sampling(SamplingParams(seed=5), index).seed for index in range(3)]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        texts = [self.text(choice) for choice in answer["choices"]]
        assert [text.startswith(f"seed {seed} says") for text, seed in zip(texts, seeds, strict=True)] == [True] * 3
        assert len({request.request_id for request in site.client.engine.requests}) == 3
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 18, 26)
        assert (usage["speculation"]["steps"], usage["speculation"]["drafted"]) == (9, 27)
        assert usage["speculation"]["mean_acceptance_length"] == 2.0
        assert site.client.engine.running == 0

    def test_greedy_choices_are_one_text_generated_once(self, route: str) -> None:
        site = Site(pieces=by_seed)
        answer = site.send("POST", route, json=self.body(route, n=3, temperature=0)).json()
        assert len({self.text(choice) for choice in answer["choices"]}) == 1
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert answer["usage"]["completion_tokens"] == 18
        assert len(site.client.engine.requests) == 1

    @pytest.mark.parametrize("temperature", [0, 1])
    def test_a_stream_has_the_choices_of_the_plain_answer(self, route: str, temperature: int) -> None:
        options: dict[str, Any] = {"n": 3, "seed": 5, "temperature": temperature}
        plain = Site(pieces=by_seed).send("POST", route, json=self.body(route, **options)).json()
        options |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = Site(pieces=by_seed).send("POST", route, json=self.body(route, **options))
        *events, done = answer.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        *chunks, usage = [json.loads(event.removeprefix("data: ")) for event in events]
        texts, reasons = ["", "", ""], [[], [], []]
        for chunk in chunks:
            [choice] = chunk["choices"]
            delta = choice.get("delta", {"content": choice.get("text")})
            if "delta" in choice:
                assert ("role" in delta) == (texts[choice["index"]] == "")
            texts[choice["index"]] += delta["content"]
            reasons[choice["index"]].append(choice["finish_reason"])
        assert texts == [self.text(choice) for choice in plain["choices"]]
        assert reasons == [[None, None, "stop"]] * 3
        assert usage["usage"] == plain["usage"]

    def test_more_choices_than_the_server_allows_are_refused(self, route: str) -> None:
        answer = Site().send("POST", route, json=self.body(route, n=17))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "n")
        assert error["message"] == "n is 17; this server allows 1 to 16"


def test_a_client_that_leaves_ends_every_choice() -> None:
    site = Site(pieces=["a", None], timeout_s=0.05)
    assert site.chat(n=4, seed=1).status_code == 408
    assert len(site.client.engine.requests) == 4
    assert site.client.engine.running == 0
