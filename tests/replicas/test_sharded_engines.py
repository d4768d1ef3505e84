"""Whole engines over ranks that are threads here: the tokens of one rank, for every drafter, model and number of ranks.

Processes and what they do when one dies: tests/replicas/tensor_parallel.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from replicas.config import SpeculativeConfig
from replicas.devices.collectives import Collectives
from replicas.devices.cpu import CpuBackend
from replicas.request import GenerationRequest, SamplingParams
from tests.reference.hand_built_engine import Answer, TinyTarget, generate, greedy_request
from tests.reference.k_policies import RandomK
from tests.reference.thread_ranks import Meeting, on_ranks
from tests.reference.tiny_checkpoints import END, write_head, write_target

PROMPTS = {str(n): tuple(random.Random(n).choices(range(END), k=n)) for n in (1, 5, 17, 30)}
MODELS: dict[str, dict[str, Any]] = {
    "tied, biases": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "nine heads, three KV": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8},
    "three query heads a KV head": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 1},
    "qwen2": {"model_type": "qwen2", "vocab_size": 203},
}


def greedy() -> list[GenerationRequest]:
    return [greedy_request(key, prompt, 12) for key, prompt in PROMPTS.items()]


def tokens_of(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {key: answer.token_ids for key, answer in answers.items()}


def on_threads(
    size: int,
    folder: Path,
    requests: list[GenerationRequest],
    speculative: SpeculativeConfig | None,
    hidden_multiple: int = 1,
    vocab_multiple: int = 1,
) -> tuple[list[dict[str, Answer]], Meeting]:
    """Every rank's answers to `requests`, and what the ranks exchanged."""

    def body(collectives: Collectives) -> dict[str, Answer]:
        backend = CpuBackend("float32", 1, hidden_multiple, vocab_multiple, collectives=collectives)
        target = TinyTarget(folder, backend=backend)
        config = target.config(max_num_batched_tokens=16)
        bench = target.bench(config, RandomK(size, 4), speculative=speculative)
        return generate(bench.engine, requests)

    return on_ranks(size, body)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp", "ngram"])
def test_greedy_tokens_and_acceptance_of_every_drafter(
    size: int, method: str, tiny_folder: Path, tiny_target: TinyTarget, speculative: dict[str, SpeculativeConfig]
) -> None:
    plain = tokens_of(generate(tiny_target.bench(tiny_target.config(), RandomK(0, 0)).engine, greedy()))
    single = on_threads(1, tiny_folder, greedy(), None)[0][0]
    ranks, meeting = on_threads(size, tiny_folder, greedy(), speculative[method])
    for answers in ranks:
        assert tokens_of(answers) == plain == tokens_of(single)
        assert [a.last.acceptance for a in answers.values()] == [a.last.acceptance for a in ranks[0].values()]
    if method != "ngram":
        assert sum(answer.last.acceptance.drafted for answer in ranks[0].values()) > 20
    # Logits never leave their rank.
    assert meeting.elements.keys() == {"sum", "maximum", "minimum"}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_models_whose_sizes_do_not_divide(name: str, size: int, tmp_path: Path) -> None:
    write_target(tmp_path, **MODELS[name])
    lookup = SpeculativeConfig(method="ngram", prompt_lookup_min=1)
    single = on_threads(1, tmp_path, greedy(), lookup)[0][0]
    for answers in on_threads(size, tmp_path, greedy(), lookup, hidden_multiple=48, vocab_multiple=32)[0]:
        assert tokens_of(answers) == tokens_of(single)


def test_a_head_with_biases_and_shapes_of_its_own(tiny_folder: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "attention_bias": True,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "norm_before_fc": True,
    }
    write_head(tmp_path, head_dim=8, intermediate_size=70, draft_vocab_size=51, **changes)
    speculative = SpeculativeConfig(method="eagle3", model=str(tmp_path))
    single = on_threads(1, tiny_folder, greedy(), speculative)[0][0]
    for answers in on_threads(4, tiny_folder, greedy(), speculative)[0]:
        assert tokens_of(answers) == tokens_of(single)


def test_sampled_tokens_and_logprobs(tiny_folder: Path, speculative: dict[str, SpeculativeConfig]) -> None:
    """Gathered logits: a seed's draw is the same on all ranks, so they stay together."""
    choices = {
        "a": SamplingParams(temperature=0.9, seed=3, max_tokens=10, logprobs=3),
        "b": SamplingParams(temperature=0.8, top_k=30, top_p=0.9, seed=4, max_tokens=10),
        "c": SamplingParams(temperature=0.0, max_tokens=10, repetition_penalty=1.3),
    }
    requests = [GenerationRequest(key, PROMPTS["17"], sampling) for key, sampling in choices.items()]
    single = on_threads(1, tiny_folder, requests, speculative["eagle3"])[0][0]
    ranks, meeting = on_threads(2, tiny_folder, requests, speculative["eagle3"])
    told = [entry for output in single["a"].outputs for entry in output.logprobs or ()]
    for answers in ranks:
        assert tokens_of(answers) == tokens_of(single)
        found = [entry for output in answers["a"].outputs for entry in output.logprobs or ()]
        assert [entry.token_id for entry in found] == [entry.token_id for entry in told]
        assert [entry.logprob for entry in found] == pytest.approx([entry.logprob for entry in told], abs=1e-4)
    assert meeting.elements["gather"] > 0
