"""Guided texts of our engine: always valid, the same for every K, and nobody else's business."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from replicas.errors import RequestError
from replicas.request import GenerationRequest, Grammar, SamplingParams
from serve_app.guidance import ANY_OBJECT
from tests.reference.hand_built_engine import Bench, TinyTarget
from tests.reference.k_policies import FixedK

PROMPT = (5, 17, 99, 42, 8)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bc"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar("json_schema", json.dumps(SCHEMA), "response_format"),
    "regex": Grammar("regex", r"([a-m]{3} ){2,4}\d+\.", "guided_regex"),
    "choice": Grammar("choice", '["perhaps", "no", "not at all"]', "guided_choice"),
}


def is_valid(name: str, text: str) -> bool:
    if name == "schema":
        data = json.loads(text)
        return (
            list(data) == ["name", "age", "tags"]
            and len(data["name"]) <= 6
            and 0 <= data["age"] <= 99
            and 1 <= len(data["tags"]) <= 3
            and {"a", "bc"}.issuperset(data["tags"])
        )
    if name == "regex":
        return re.fullmatch(GRAMMARS[name].text, text) is not None
    return text in json.loads(GRAMMARS[name].text)


@pytest.fixture(scope="module")
def bench(tiny_target: TinyTarget, tiny_head: Path) -> dict[int, Bench]:
    return {k: tiny_target.bench(tiny_target.config(), FixedK(k), head=tiny_head if k else None) for k in range(6)}


def texts(bench: Bench, requests: dict[str, SamplingParams]) -> dict[str, tuple[str, str | None]]:
    """Text and finish reason of each request, all run together."""
    found: dict[str, tuple[str, str | None]] = dict.fromkeys(requests, ("", None))
    for name, sampling in requests.items():
        bench.engine.add_request(GenerationRequest(name, PROMPT, sampling))
    while bench.engine.has_work:
        for output in bench.engine.step():
            text, _ = found[output.request_id]
            found[output.request_id] = (text + output.text, output.finish_reason)
    return found


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize(
    "way", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}, {"temperature": 1.5, "seed": 4}]
)
def test_a_guided_text_is_valid_and_the_same_for_every_k(
    bench: dict[int, Bench], name: str, way: dict[str, float]
) -> None:
    sampling = SamplingParams(grammar=GRAMMARS[name], max_tokens=100, **way)  # pyright: ignore[reportArgumentType]
    found = [texts(bench[k], {"r": sampling})["r"] for k in range(6)]
    text, reason = found[0]
    assert reason == "stop"
    assert is_valid(name, text), text
    assert found == [(text, reason)] * 6


def test_some_drafts_of_a_guided_text_are_accepted(bench: dict[int, Bench]) -> None:
    """Else K would not matter above."""
    accepted = 0
    for seed in range(20):
        sampling = SamplingParams(grammar=GRAMMARS["regex"], seed=seed, max_tokens=60)
        bench[3].engine.add_request(GenerationRequest(f"{seed}", PROMPT, sampling))
        while bench[3].engine.has_work:
            outputs = bench[3].engine.step()
            accepted += sum(output.acceptance.accepted for output in outputs if output.finish_reason)
    assert accepted > 0


@pytest.mark.parametrize("k", [0, 4])
def test_neighbours_in_a_batch_are_left_alone(bench: dict[int, Bench], k: int) -> None:
    free = {
        "greedy": SamplingParams(temperature=0.0, max_tokens=24),
        "seeded": SamplingParams(seed=9, max_tokens=24, presence_penalty=0.5),
    }
    guided = {name: SamplingParams(grammar=GRAMMARS[name], seed=1, max_tokens=100) for name in GRAMMARS}
    alone = {name: texts(bench[k], {name: sampling})[name] for name, sampling in (free | guided).items()}
    assert texts(bench[k], free | guided) == alone
    assert all(is_valid(name, alone[name][0]) for name in GRAMMARS)


def test_with_penalties_and_logprobs(bench: dict[int, Bench]) -> None:
    sampling = SamplingParams(
        grammar=GRAMMARS["schema"], temperature=0.0, frequency_penalty=2.0, logprobs=2, max_tokens=100
    )
    found = [texts(bench[k], {"r": sampling})["r"] for k in (0, 2, 5)]
    assert is_valid("schema", found[0][0])
    assert found == [found[0]] * 3


def test_the_greedy_choice_is_the_best_of_those_that_may_come(
    bench: dict[int, Bench], tiny_reference: LlamaForCausalLM, tiny_target: TinyTarget
) -> None:
    """Against transformers, for a grammar whose next characters can be listed by hand: one of a to m, thrice."""
    assert tiny_target.codec is not None
    sampling = SamplingParams(grammar=Grammar("regex", "[a-m]{3}", "guided_regex"), temperature=0.0)
    text, _ = texts(bench[3], {"r": sampling})["r"]
    pieces = {token: tiny_target.codec.token_bytes(token).decode() for token in range(199)}
    tokens: list[int] = list(PROMPT)
    written = ""
    while len(written) < 3:
        with torch.inference_mode():
            logits = tiny_reference(torch.tensor([tokens])).logits[0, -1]
        fitting = [token for token, piece in pieces.items() if re.fullmatch(f"[a-m]{{1,{3 - len(written)}}}", piece)]
        tokens.append(max(fitting, key=lambda token: float(logits[token])))
        written += pieces[tokens[-1]]
    assert text == written


@pytest.mark.parametrize("k", [0, 4])
def test_a_grammar_that_the_vocabulary_cannot_write_ends_its_own_request_alone(bench: dict[int, Bench], k: int) -> None:
    """The tiny tokenizer has no newline."""
    whole = bench[k].allocator.num_free
    requests = {
        "stuck": SamplingParams(grammar=Grammar("regex", "ab\n", "guided_regex"), temperature=0.0),
        "free": SamplingParams(temperature=0.0, max_tokens=20),
    }
    found = texts(bench[k], requests)
    assert found["stuck"][1] == "error"
    assert found["stuck"][0] in ("", "a", "ab")
    assert found["free"] == texts(bench[k], {"free": requests["free"]})["free"]
    assert bench[k].allocator.num_free == whole


def test_a_wrong_grammar_never_reaches_the_scheduler(bench: dict[int, Bench]) -> None:
    with pytest.raises(RequestError, match="guided_regex"):
        texts(bench[2], {"r": SamplingParams(grammar=Grammar("regex", "(", "guided_regex"))})
    assert not bench[2].engine.has_work
    any_object = SamplingParams(grammar=Grammar("json_schema", ANY_OBJECT, "response_format"), seed=5, max_tokens=12)
    assert texts(bench[2], {"r": any_object})["r"][0].startswith("{")


def test_a_preempted_guided_text_goes_on_where_it_was(tiny_target: TinyTarget, tiny_head: Path) -> None:
    config = tiny_target.config(max_num_seqs=3, num_blocks=36, enable_prefix_caching=False)
    small = tiny_target.bench(config, FixedK(2), head=tiny_head)
    long = Grammar("regex", "([a-m]{3} ){20}", "guided_regex")
    requests = {f"{seed}": SamplingParams(grammar=long, seed=seed, max_tokens=110) for seed in range(3)}
    roomy = tiny_target.bench(tiny_target.config(), FixedK(2), head=tiny_head)
    found = texts(small, requests)
    assert found == texts(roomy, requests)
    starts = [part.start for plan, _ in small.runner.steps for batch in plan.batches for part in batch.sequences]
    assert starts.count(0) > 3
    assert all(re.fullmatch(long.text, text) for text, _ in found.values())
