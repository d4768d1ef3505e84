"""What a client sees of a model, whichever engine serves it: the same tests for ours, vLLM, and a fake of it."""

import asyncio
import json
from typing import Any

import httpx

from serve_app import metric_definitions as of
from serve_app.ingress import build_http_app
from serve_app.replica_deployment import ModelReplica
from serve_app.replica_metrics import ReplicaMetrics
from serve_app.served_models import ServedModel
from serve_app.settings import AnyModelSettings
from tests.serve_app.fake_engine import ReplicaClient
from tests.serve_app.kept_figures import Kept

PROMPT = "the weather"


class Service:
    """The HTTP application over one replica."""

    def __init__(self, settings: AnyModelSettings, replica: ModelReplica) -> None:
        self.settings = settings
        self.replica = replica
        self.app = build_http_app({"m": ServedModel(settings, ReplicaClient(replica), 1)}, None)

    def get(self, path: str) -> httpx.Response:
        return self._send("GET", path)

    def complete(self, **options: Any) -> httpx.Response:
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 8, "temperature": 0} | options
        return self._send("POST", "/v1/completions", json=body)

    def choice(self, **options: Any) -> dict[str, Any]:
        answer = self.complete(**options)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    def chunks(self, **options: Any) -> list[dict[str, Any]]:
        answer = self.complete(stream=True, **options)
        *events, done = answer.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def error(self, **options: Any) -> dict[str, Any]:
        answer = self.complete(**options)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self.app), base_url="http://test", timeout=None
            ) as http:
                return await http.request(method, path, **options)

        return asyncio.run(send())


class OneApi:
    """Mixed into a test class, which has a fixture `service`: a model with a drafter of K = 3."""

    def test_an_answer_of_the_length_that_was_asked_for(self, service: Service) -> None:
        answer = service.complete(ignore_eos=True).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["text"]
        usage = answer["usage"]
        assert usage["completion_tokens"] == 8
        assert usage["prompt_tokens"] + 8 == usage["total_tokens"]

    def test_acceptance_facts_fit_each_other(self, service: Service) -> None:
        speculation = service.complete(ignore_eos=True).json()["usage"]["speculation"]
        steps, drafted, accepted = (speculation[key] for key in ("steps", "drafted", "accepted"))
        assert speculation["num_speculative_tokens"] == 3
        assert 2 <= steps <= 7
        assert 0 <= accepted <= drafted <= 3 * steps
        # The prefill gives one token, each step one more than it accepts; the last may be cut.
        assert 8 <= 1 + steps + accepted <= 8 + 3
        assert abs(speculation["mean_acceptance_length"] - (1 + accepted / steps)) < 1e-9

    def test_a_stream_joins_to_the_plain_answer(self, service: Service) -> None:
        chunks = service.chunks(ignore_eos=True, stream_options={"include_usage": True})
        *parts, last = chunks
        text = "".join(choice["text"] for chunk in parts for choice in chunk["choices"])
        assert text == service.choice(ignore_eos=True)["text"]
        assert last["usage"]["completion_tokens"] == 8
        reasons = [choice["finish_reason"] for chunk in parts for choice in chunk["choices"]]
        assert reasons[-1] == "length"
        assert set(reasons[:-1]) <= {None}

    def test_a_stop_string_ends_the_text_before_it(self, service: Service) -> None:
        text = service.choice(ignore_eos=True)["text"]
        stop = text[3:5]
        choice = service.choice(ignore_eos=True, stop=[stop])
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")

    def test_logprobs_of_every_token(self, service: Service) -> None:
        columns = service.choice(ignore_eos=True, logprobs=2)["logprobs"]
        assert [len(columns[key]) for key in ("tokens", "token_logprobs", "top_logprobs")] == [8, 8, 8]
        for chosen, logprob, top in zip(
            columns["tokens"], columns["token_logprobs"], columns["top_logprobs"], strict=True
        ):
            assert logprob <= 0
            assert top[chosen] == logprob
            assert 2 <= len(top) <= 3

    def test_a_choice_out_of_some(self, service: Service) -> None:
        choice = service.choice(guided_choice=["no", "yes"], max_tokens=20)
        assert choice["text"] in ("no", "yes")
        assert choice["finish_reason"] == "stop"

    def test_a_prompt_that_is_too_long(self, service: Service) -> None:
        error = service.error(prompt=[5] * service.settings.max_model_len)
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        assert f"maximum context length is {service.settings.max_model_len} tokens" in error["message"]

    def test_a_bias_of_a_token_that_the_model_does_not_have(self, service: Service) -> None:
        error = service.error(logit_bias={"999999": 1})
        assert error["param"] == "logit_bias"
        assert error["message"].startswith("logit_bias holds token 999999; this model's tokens are 0 to ")

    def test_a_grammar_that_is_broken(self, service: Service) -> None:
        error = service.error(guided_regex="(a")
        assert (error["param"], error["code"]) == ("guided_regex", "invalid_grammar")
        assert service.choice()["text"]

    def test_figures_that_both_engines_have(self, service: Service) -> None:
        before = asyncio.run(service.replica.stats())
        service.complete(ignore_eos=True)
        after = asyncio.run(service.replica.stats())
        assert after["generated_tokens"] - before["generated_tokens"] == 8
        assert after["steps"] > before["steps"]
        assert after["total_blocks"] >= after["free_blocks"] > 0
        assert {"running", "waiting", "prefix_cache_queries", "prefix_cache_hits"} <= after.keys()
        assert service.get("/health").status_code == 200

    def test_drafts_reach_prometheus(self, service: Service) -> None:
        kept = Kept()
        service.replica._metrics = ReplicaMetrics(kept)
        asyncio.run(service.replica.check_health())
        before = dict(kept.counters)
        speculation = service.complete(ignore_eos=True).json()["usage"]["speculation"]
        asyncio.run(service.replica.check_health())
        grown = {key: value - before.get(key, 0) for key, value in kept.counters.items()}
        assert grown[of.DRAFT_TOKENS, ()] == speculation["drafted"] > 0
        assert grown[of.ACCEPTED_TOKENS, ()] == speculation["accepted"]
        assert 0 < grown[of.DRAFTS, ()] <= speculation["steps"]
        by_position = [[grown[metric, (place,)] for place in "012"] for metric in (of.DRAFTED_AT, of.ACCEPTED_AT)]
        assert [sum(counts) for counts in by_position] == [speculation["drafted"], speculation["accepted"]]
        assert all(drafted >= accepted for drafted, accepted in zip(*by_position, strict=True))
