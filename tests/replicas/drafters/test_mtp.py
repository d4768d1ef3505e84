"""The MTP layer, inside an engine, against transformers' layers that compute everything anew."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from replicas.config import SpeculativeConfig
from replicas.devices.cpu import CpuBackend
from tests.reference.decoding import greedy
from tests.reference.hand_built_engine import TinyTarget
from tests.reference.k_policies import RandomK
from tests.reference.mtp import Family, NaiveMtp, add_tensors, save_tensors
from tests.reference.proposals import assert_proposals, assert_right_whatever_was_accepted
from tests.reference.sentences import checkpoint_error
from tests.reference.tiny_checkpoints import END, HIDDEN, LAYERS, VOCAB, write_target

OWN = SpeculativeConfig(method="mtp")
PROMPTS = {str(n): tuple(random.Random(n).choices(range(END), k=n)) for n in (1, 2, 5, 9, 17, 30)}
Tensors = dict[str, Tensor]


@pytest.mark.parametrize(
    ("model_type", "family", "budget"),
    [("llama", "deepseek", 16), ("llama", "qwen3_next", 64), ("qwen3", "deepseek", 64), ("qwen3", "qwen3_next", 16)],
)
def test_a_target_s_own_layer_drafts_like_the_reference(
    model_type: str, family: Family, budget: int, tmp_path: Path
) -> None:
    """Prompts in chunks, batches, K that changes at every step, and prefixes from the cache."""
    reference = write_target(tmp_path, model_type=model_type)
    mtp = NaiveMtp(reference, family)
    add_tensors(tmp_path, mtp.tensors())
    target = TinyTarget(tmp_path)
    config = target.config(max_num_batched_tokens=budget)
    bench = target.bench(config, RandomK(budget, 4), speculative=OWN)
    assert assert_proposals(bench, PROMPTS, 8, mtp.drafts) > 20
    again = {f"again {key}": (*prompt, 3) for key, prompt in PROMPTS.items()}
    assert assert_proposals(bench, again, 4, mtp.drafts) > 3
    assert bench.engine.stats().prefix_cache_hits > 40


@pytest.mark.parametrize("seed", [0, 1])
def test_drafts_stay_right_whatever_was_accepted_before(
    seed: int, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    mtp = NaiveMtp(tiny_reference)
    mtp.write(tmp_path)
    inner = tiny_target.drafter(tiny_target.config(), SpeculativeConfig(method="mtp", model=str(tmp_path)))
    prompts = {key: PROMPTS[key] for key in ("1", "5", "17", "30")}
    answers = {key: greedy(tiny_reference, prompt, 33) for key, prompt in prompts.items()}
    assert_right_whatever_was_accepted(tiny_target, inner, prompts, answers, mtp.drafts, seed)


@pytest.mark.parametrize("copies", ["equal", "other"])
def test_an_embedding_and_a_head_of_its_own(copies: str, tmp_path: Path) -> None:
    """DeepSeek-V3 holds copies of the target's; others would be its own."""
    mtp = NaiveMtp(write_target(tmp_path))
    if copies == "other":
        generator = torch.Generator().manual_seed(5)
        mtp.embedding, mtp.head = (torch.randn(2, VOCAB, HIDDEN, generator=generator) * 0.2).unbind(0)
    prefix = f"model.layers.{LAYERS}."
    own = {f"{prefix}embed_tokens.weight": mtp.embedding, f"{prefix}shared_head.head.weight": mtp.head}
    add_tensors(tmp_path, mtp.tensors() | own)
    target = TinyTarget(tmp_path)
    bench = target.bench(target.config(), RandomK(1, 4), speculative=OWN)
    assert assert_proposals(bench, {"9": PROMPTS["9"]}, 12, mtp.drafts) > 4


def test_sizes_that_a_device_pads(tmp_path: Path) -> None:
    mtp = NaiveMtp(write_target(tmp_path))
    add_tensors(tmp_path, mtp.tensors())
    target = TinyTarget(tmp_path, backend=CpuBackend("float32", 1, hidden_multiple=48, vocab_multiple=128))
    bench = target.bench(target.config(), RandomK(2, 4), speculative=OWN)
    assert assert_proposals(bench, {key: PROMPTS[key] for key in ("5", "17")}, 10, mtp.drafts) > 6


def without(ending: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: value for name, value in tensors.items() if not name.endswith(ending)}


def renamed(before: str, after: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(before, after): value for name, value in tensors.items()}


def also(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: torch.zeros(3)}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            without("eh_proj.weight"),
            "holds no MTP layer for a target of 4 layers: neither tensor 'model.layers.4.eh_proj.weight' nor "
            "'mtp.fc.weight' (DeepSeek-V3 and GLM-4 MoE; Qwen3-Next)",
        ),
        (without("hnorm.weight"), "has no tensor 'model.layers.4.hnorm.weight'"),
        (
            renamed("mlp.gate_proj", "mlp.experts.0.gate_proj"),
            "holds tensor 'model.layers.4.mlp.experts.0.gate_proj.weight': MTP layers with experts are not supported, "
            "only dense ones",
        ),
        (
            also("model.layers.5.enorm.weight"),
            "holds tensor 'model.layers.5.enorm.weight' of a second MTP layer; only one, chained, is supported",
        ),
        (
            also("model.layers.4.self_attn.q_proj.bias"),
            "holds tensor 'model.layers.4.self_attn.q_proj.bias', which no supported MTP layer of its target has",
        ),
    ],
)
def test_what_is_missing_or_not_supported_is_refused(
    change: Callable[[Tensors], Tensors],
    sentence: str,
    tiny_reference: LlamaForCausalLM,
    tiny_target: TinyTarget,
    tmp_path: Path,
) -> None:
    mtp = NaiveMtp(tiny_reference)
    mtp.write(tmp_path)
    save_tensors(tmp_path, change(mtp.tensors()))
    speculative = SpeculativeConfig(method="mtp", model=str(tmp_path))
    error = checkpoint_error(lambda: tiny_target.drafter(tiny_target.config(), speculative))
    assert error == f"{tmp_path} {sentence}"
