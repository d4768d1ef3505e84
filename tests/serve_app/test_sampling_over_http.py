"""Penalties, biases and log-probabilities from the HTTP body to our own engine and back, on a tiny target."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from transformers import LlamaForCausalLM

from replicas.request import SamplingParams
from replicas.text_codec import TextCodec
from serve_app.generation import GenerationJob, Tokenized, TokenizeJob
from serve_app.ingress import build_http_app
from serve_app.replica_deployment import ModelReplica
from serve_app.sampling_defaults import SamplingDefaults
from serve_app.served_models import ServedModel
from serve_app.settings import ModelSettings
from tests.reference.decoding import sampled
from tests.reference.tiny_checkpoints import VOCAB, write_head, write_target
from tests.serve_app.fake_engine import LocalStream

PROMPT = [5, 17, 99, 42, 8, 17]
OPTIONS: dict[str, Any] = {
    "presence_penalty": 0.7,
    "frequency_penalty": 0.4,
    "repetition_penalty": 1.2,
    "logit_bias": {"33": 8.0, "40": 8.5, "41": 8.0, "100": -100.0},
    "max_tokens": 20,
    "min_tokens": 20,
}
TOLERANCE = 1e-4


class OwnClient:
    """A ModelClient over a replica with our own engine."""

    def __init__(self, settings: ModelSettings) -> None:
        self.replica = ModelReplica(settings)

    def generate(self, job: GenerationJob) -> LocalStream:
        return LocalStream(self.replica.generate(job))

    async def tokenize(self, job: TokenizeJob) -> Tokenized:
        return await self.replica.tokenize(job)

    async def detokenize(self, token_ids: tuple[int, ...]) -> str:
        return await self.replica.detokenize(token_ids)

    async def stats(self) -> dict[str, float]:
        return await self.replica.stats()


class Tiny:
    """The HTTP application over a tiny target with a random head."""

    def __init__(self, folder: Path) -> None:
        self.reference: LlamaForCausalLM = write_target(folder / "target")
        write_head(folder / "head")
        self.codec = TextCodec(folder / "target")
        speculative = {"method": "eagle3", "model": str(folder / "head"), "num_speculative_tokens": 4}
        fields = {"dtype": "float32", "num_threads": 1, "max_model_len": 64, "max_num_seqs": 2, "block_size": 4}
        self.settings = ModelSettings.model_validate(
            {"id": "m", "model": str(folder / "target"), "speculative_config": speculative} | fields
        )
        self.client = OwnClient(self.settings)
        self.app = build_http_app({"m": ServedModel(self.settings, self.client, 1)}, None)

    def send(self, **options: Any) -> httpx.Response:
        return self.send_to(self.app, **options)

    def send_to(self, app: FastAPI, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
                return await http.post("/v1/completions", json={"model": "m", "prompt": PROMPT} | options)

        return asyncio.run(send())


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    site = Tiny(tmp_path_factory.mktemp("tiny"))
    yield site
    del site.client.replica


@pytest.mark.parametrize("speculation", [{}, {"enabled": False}])
@pytest.mark.parametrize("way", [{"temperature": 0}, {"temperature": 0.8, "seed": 11}])
def test_a_completion_is_the_references(tiny: Tiny, way: dict[str, Any], speculation: dict[str, Any]) -> None:
    answer = tiny.send(**OPTIONS, **way, logprobs=3, speculation=speculation).json()
    bias = tuple((int(token), value) for token, value in OPTIONS["logit_bias"].items())
    params = SamplingParams(
        temperature=way["temperature"],
        seed=way.get("seed"),
        presence_penalty=0.7,
        frequency_penalty=0.4,
        repetition_penalty=1.2,
        logit_bias=bias,
        min_tokens=20,
    )
    expected = sampled(tiny.reference, PROMPT, 20, params, (VOCAB - 1,))
    choice = answer["choices"][0]
    assert choice["text"] == tiny.codec.decode(expected.token_ids)
    assert answer["usage"]["completion_tokens"] == 20
    columns = choice["logprobs"]
    pieces = [tiny.codec.token_bytes(token).decode() for token in expected.token_ids]
    assert columns["tokens"] == pieces
    assert columns["text_offset"] == [len("".join(pieces[:index])) for index in range(20)]
    chosen = [row[token] for token, row in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert columns["token_logprobs"] == pytest.approx(chosen, abs=TOLERANCE)
    for found, row, token in zip(columns["top_logprobs"], expected.logprobs, expected.token_ids, strict=True):
        best = {int(index) for index in row.argsort()[-3:]} | {token}
        wanted = {tiny.codec.token_bytes(index).decode(): row[index] for index in best}
        assert found == pytest.approx(wanted, abs=TOLERANCE)


def test_a_stream_joins_to_the_plain_answer(tiny: Tiny) -> None:
    options = OPTIONS | {"temperature": 0, "logprobs": 2}
    plain = tiny.send(**options).json()["choices"][0]
    *events, done = tiny.send(**options, stream=True).text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
    assert "".join(chunk["text"] for chunk in chunks) == plain["text"]
    for column, values in plain["logprobs"].items():
        joined = [value for chunk in chunks for value in chunk["logprobs"][column]]
        if column == "top_logprobs":
            assert [found.keys() for found in joined] == [wanted.keys() for wanted in values]
        elif column == "token_logprobs":
            assert joined == pytest.approx(values, abs=TOLERANCE)
        else:
            assert joined == values


def test_a_bias_of_a_token_that_the_model_does_not_have_is_400(tiny: Tiny) -> None:
    answer = tiny.send(logit_bias={str(VOCAB): 1})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == ("logit_bias", "invalid_request_error")
    assert error["message"] == f"logit_bias holds token {VOCAB}; this model's tokens are 0 to {VOCAB - 1}"
    assert tiny.send(max_tokens=2).status_code == 200


@pytest.mark.parametrize("speculation", [{}, {"enabled": False}])
def test_a_guided_completion_is_json_by_its_schema(tiny: Tiny, speculation: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    schema |= {"additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    answer = tiny.send(response_format=wanted, max_tokens=50, temperature=0, n=2, speculation=speculation).json()
    first, second = answer["choices"]
    assert first["finish_reason"] == "stop"
    assert json.loads(first["text"])["n"] <= 99
    assert second["text"] == first["text"]
    chosen = tiny.send(guided_choice=["maybe", "never"], seed=1, speculation=speculation).json()["choices"][0]["text"]
    assert chosen in ("maybe", "never")


def test_a_broken_grammar_is_400_and_the_next_request_served(tiny: Tiny) -> None:
    answer = tiny.send(guided_regex="(a")
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "guided_regex", "invalid_grammar")
    assert error["message"].startswith("guided_regex: Regex parsing error at position")
    stuck = tiny.send(guided_regex="a\nb", temperature=0)  # The tiny tokenizer has no newline.
    assert (stuck.status_code, stuck.json()["error"]["code"]) == (400, "invalid_grammar")
    assert tiny.send(max_tokens=2).status_code == 200


def test_a_request_that_does_not_say_is_sampled_as_the_model_is_configured(tiny: Tiny) -> None:
    settings = tiny.settings.model_copy(update={"sampling_defaults": SamplingDefaults(temperature=0)})
    greedy = build_http_app({"m": ServedModel(settings, tiny.client, 1)}, None)

    def text_of(app: FastAPI, **options: Any) -> str:
        return tiny.send_to(app, **options, max_tokens=20).json()["choices"][0]["text"]

    assert text_of(greedy) == text_of(tiny.app, temperature=0)
    assert text_of(greedy, temperature=0.8, seed=11) == text_of(tiny.app, temperature=0.8, seed=11)
