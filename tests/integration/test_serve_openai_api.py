"""The served demo, seen through the openai client."""

import json
import threading
import time
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from serve_app.metric_definitions import ACCEPTED_TOKENS, DRAFT_TOKENS
from tests.integration.exported_metrics import wait_for_figures
from tests.integration.serve_process import Server

pytestmark = pytest.mark.serving

MODEL = "smollm2-135m"
FRUITS: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "Name three fruits and say what each is good for."}
]
SPECULATION_KEYS = {"method", "num_speculative_tokens", "steps", "drafted", "accepted", "mean_acceptance_length"}


def configured_k(server: Server) -> int:
    models = server.config["applications"][0]["args"]["models"]
    return models[0]["speculative_config"]["num_speculative_tokens"]


def ask(server: Server, messages: list[ChatCompletionMessageParam] = FRUITS, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 40} | options
    return server.client.chat.completions.create(model=MODEL, messages=messages, **options)


def speculation(usage: Any) -> dict[str, Any]:
    return usage.model_extra["speculation"]


def total_blocks(server: Server) -> float:
    return server.http.get("/stats").json()[MODEL]["total_blocks"]


def wait_for_stats(server: Server, deadline_s: float, **wanted: float) -> dict[str, float]:
    """Poll until the figures are `wanted`; fail after `deadline_s`."""
    deadline = time.monotonic() + deadline_s
    with server.http as http:
        while True:
            stats = http.get("/stats").json()[MODEL]
            if all(stats[name] == value for name, value in wanted.items()):
                return stats
            assert time.monotonic() < deadline, f"wanted {wanted} within {deadline_s} s, got {stats}"


def test_models_are_listed_with_their_speculation(server: Server) -> None:
    [model] = server.client.models.list().data
    assert model.id == MODEL
    assert server.client.models.retrieve(MODEL) == model
    assert model.model_extra == {
        "max_model_len": 2048,
        "speculation": {"method": "eagle3", "num_speculative_tokens": configured_k(server)},
    }


def test_health(server: Server) -> None:
    answer = server.http.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "models": {MODEL: "ok"}})


def test_chat_answers_and_counts(server: Server) -> None:
    answer = ask(server)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 40
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 40
    assert len(answer.choices[0].message.content) > 40


def test_usage_tells_how_speculation_went(server: Server) -> None:
    usage = ask(server).usage
    told = speculation(usage)
    assert told.keys() == SPECULATION_KEYS
    assert told["method"] == "eagle3"
    assert told["num_speculative_tokens"] == configured_k(server)
    assert told["drafted"] > 0
    assert told["mean_acceptance_length"] == pytest.approx(1 + told["accepted"] / told["steps"])
    # The first token comes with the prefill; every step gives one of its own beside the accepted ones.
    # The last step may have accepted more than max_tokens leaves room for.
    assert 0 <= 1 + told["steps"] + told["accepted"] - usage.completion_tokens <= configured_k(server)


def test_drafts_reach_prometheus(server: Server) -> None:
    told = speculation(ask(server).usage)
    found = wait_for_figures(server, lambda figures: figures.get(DRAFT_TOKENS.exported, 0) >= told["drafted"])
    assert 0 < found[ACCEPTED_TOKENS.exported] < found[DRAFT_TOKENS.exported]


@pytest.mark.parametrize("option", [{"enabled": False}, {"num_speculative_tokens": 0}])
def test_speculation_can_be_switched_off_and_the_greedy_text_stays(server: Server, option: dict[str, Any]) -> None:
    off = ask(server, extra_body={"speculation": option})
    told = speculation(off.usage)
    assert (told["num_speculative_tokens"], told["drafted"], told["mean_acceptance_length"]) == (0, 0, 1.0)
    assert told["steps"] == off.usage.completion_tokens - 1
    assert off.choices[0].message.content == ask(server).choices[0].message.content


def test_k_can_be_capped(server: Server) -> None:
    told = speculation(ask(server, extra_body={"speculation": {"num_speculative_tokens": 1}}).usage)
    assert told["num_speculative_tokens"] == 1
    assert 0 < told["drafted"] <= told["steps"]


@pytest.mark.parametrize(
    ("question", "temperature"),
    [
        ("What is the capital of France?", 1),
        ("Repeat exactly: 👩‍🚀🦜🌍 🎉 ñandú", 0),
        ("Repeat exactly: 👩‍🚀🦜🌍 🎉 ñandú", 1),
        ("请用中文介绍一下北京。只用中文回答。", 0),
        ("请用中文介绍一下北京。只用中文回答。", 1),
    ],
)
def test_a_stream_joined_is_the_plain_answer(server: Server, question: str, temperature: float) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    # A seeded sample depends on the drafts that it verifies, not on how it is sent.
    options = {"temperature": temperature, "seed": 7, "max_tokens": 60}
    plain = ask(server, messages, **options)
    chunks = list(ask(server, messages, stream=True, stream_options={"include_usage": True}, **options))
    assert chunks[-1].choices == []
    content = chunks[:-1]
    assert "".join(chunk.choices[0].delta.content for chunk in content) == plain.choices[0].message.content
    assert [chunk.choices[0].delta.role for chunk in content] == ["assistant"] + [None] * (len(content) - 1)
    reasons = [chunk.choices[0].finish_reason for chunk in content]
    assert reasons == [None] * (len(content) - 1) + [plain.choices[0].finish_reason]
    assert {chunk.usage for chunk in content} == {None}
    # The second one to ask finds more of its prompt in the prefix cache.
    cached = {"prompt_tokens_details"}
    assert chunks[-1].usage.model_dump(exclude=cached) == plain.usage.model_dump(exclude=cached)


def test_a_stream_has_at_most_a_chunk_a_step_and_one_done(server: Server) -> None:
    body = {
        "model": MODEL,
        "prompt": "One, two, three,",
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with server.http as http, http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines.count("data: [DONE]") == 1
    assert lines[-1] == "data: [DONE]"
    *chunks, usage = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert usage["choices"] == []
    assert 1 <= len(chunks) <= usage["usage"]["speculation"]["steps"] + 1
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}


def test_completion_of_a_text_and_of_its_tokens(server: Server) -> None:
    complete = server.client.completions.create
    text = complete(model=MODEL, prompt="The quick brown fox", max_tokens=12, temperature=0)
    tokens = complete(model=MODEL, prompt=[504, 2365, 6354, 16438], max_tokens=12, temperature=0)
    assert text.usage is not None
    assert text.usage.completion_tokens == 12
    assert tokens.choices[0].text == text.choices[0].text != ""


def test_a_prompt_asked_again_is_found_in_the_prefix_cache(server: Server) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Which rivers meet in Koblenz? " * 4}]
    cold, warm = (ask(server, messages) for _ in range(2))
    assert warm.usage.prompt_tokens_details.cached_tokens > cold.usage.prompt_tokens_details.cached_tokens
    # All whole blocks but the one whose next token is not part of the prompt.
    assert warm.usage.prompt_tokens_details.cached_tokens == (warm.usage.prompt_tokens - 1) // 16 * 16
    assert warm.choices[0].message.content == cold.choices[0].message.content


def test_a_stop_string_ends_the_text_before_it(server: Server) -> None:
    whole = ask(server).choices[0].message.content
    stop = whole[len(whole) // 2 :][:6]
    stopped = ask(server, stop=stop)
    assert stopped.choices[0].message.content == whole[: whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"


def test_seeds_repeat_a_sample(server: Server) -> None:
    texts = [ask(server, temperature=1, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_refused_and_the_next_request_served(server: Server, stream: bool) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "word " * 2500}]
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, messages, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    count = int(caught.value.message.split(" tokens, but")[0].rsplit(" ", 1)[1])
    assert 2500 <= count < 2600
    assert "2048" in caught.value.message
    assert ask(server).usage.completion_tokens == 40


def test_generation_ends_with_length_at_max_model_len(server: Server) -> None:
    answer = server.client.completions.create(
        model=MODEL, prompt=[504] * 2030, max_tokens=500, temperature=0, extra_body={"ignore_eos": True}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 2048


@pytest.mark.parametrize(
    ("options", "param", "part"),
    [
        ({"extra_body": {"num_spec_tokens": 3}}, "num_spec_tokens", "unknown key"),
        ({"extra_body": {"speculation": {"enable": False}}}, "speculation.enable", "num_speculative_tokens"),
        ({"n": 100}, "n", "this server allows 1 to"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"extra_body": {"messages": []}}, "messages", "at least 1"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    server: Server, options: dict[str, Any], param: str, part: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, **options)
    assert caught.value.param == param
    assert param.rsplit(".", 1)[-1] in caught.value.message
    assert part in caught.value.message


def test_an_unknown_model_is_404(server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        server.client.chat.completions.create(model="gpt-4", messages=FRUITS)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_blocks_within_a_second(server: Server, stream: bool) -> None:
    whole = total_blocks(server)
    body = {
        "model": MODEL,
        "messages": FRUITS,
        "max_tokens": 1900,
        "ignore_eos": True,
        "temperature": 0,
        "stream": stream,
    }
    begun, gone = threading.Event(), threading.Event()

    def leave_in_the_middle() -> None:
        with server.http as http:
            request = http.build_request("POST", "/v1/chat/completions", json=body)
            if stream:
                answer = http.send(request, stream=True)
                lines = answer.iter_lines()
                next(lines)
                begun.set()
                gone.wait()
                answer.close()
            else:
                request.extensions["timeout"] = {"connect": 5, "pool": 5, "write": 5, "read": 3}
                begun.set()
                with pytest.raises(httpx.ReadTimeout):
                    http.send(request)

    client = threading.Thread(target=leave_in_the_middle)
    client.start()
    begun.wait(60)
    stats = wait_for_stats(server, 30, running=1)
    assert stats["free_blocks"] < whole
    gone.set()
    client.join()
    wait_for_stats(server, 1.0, running=0, waiting=0, free_blocks=whole)


def test_many_at_once_get_what_each_gets_alone(server: Server) -> None:
    questions = ["Say hello.", "Count to five.", "What is water made of?", "Name a colour.", "Who was Newton?", "1+1?"]
    prompts: list[list[ChatCompletionMessageParam]] = [[{"role": "user", "content": q}] for q in questions]
    alone = [ask(server, prompt).choices[0].message.content for prompt in prompts]
    together: dict[int, str] = {}

    def run(index: int) -> None:
        stream = ask(server, prompts[index], stream=True)
        together[index] = "".join(chunk.choices[0].delta.content for chunk in stream)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[index] for index in range(len(prompts))] == alone
