"""A head in every layout, with and without its optional parts and padding, drafts as one without a cache does."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from replicas.devices.cpu import CpuBackend
from replicas.drafters.eagle3_head import Eagle3Head
from tests.reference.eagle3 import Expected
from tests.reference.hand_built_engine import TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK
from tests.reference.tiny_checkpoints import (
    DRAFT_VOCAB,
    VOCAB,
    as_speculators,
    head_config,
    head_tensors,
    save_head,
    write_target,
)

PROMPTS = {f"of {length}": tuple(random.Random(length).choices(range(VOCAB - 1), k=length)) for length in (1, 6, 19)}
Head = tuple[Mapping[str, Any], Mapping[str, Tensor]]


def as_saved_by_safeailab(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Head:
    return config, tensors


def as_saved_by_nemo(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Head:
    """Every name under `model.`, save the draft's head and maps; the layer as in speculators."""
    outside = ("lm_head.weight", "d2t", "t2d")
    names = {name: name if name in outside else "model." + name.replace("midlayer.", "layers.0.") for name in tensors}
    return config, {names[name]: tensor for name, tensor in tensors.items()}


LAYOUTS = {"SafeAILab": as_saved_by_safeailab, "speculators": as_speculators, "NeMo": as_saved_by_nemo}


def check_drafts(
    target: TinyTarget,
    reference: LlamaForCausalLM,
    folder: Path,
    expected: Expected,
    target_ids: set[int] | None = None,
) -> None:
    """Every proposal of the head in `folder` is the one that `expected` makes, and they are not all alike."""
    bench = target.bench(target.config(), FixedK(3), head=folder)
    answers = generate(bench.engine, [greedy_request(key, prompt, 6) for key, prompt in PROMPTS.items()])
    seen: set[int] = set()
    compared = 0
    for key, prompt in PROMPTS.items():
        tokens = (*prompt, *answers[key].token_ids)
        for length, drafts in bench.runner.drafts_of(key):
            if length <= len(tokens):
                assert drafts == expected.drafts(tokens[:length], 3), f"{key} after {length} tokens"
                seen.update(drafts)
                compared += 1
    assert compared >= 9
    assert len(seen) > 5
    if target_ids is not None:
        assert seen <= target_ids


@pytest.mark.parametrize("reduced", [True, False], ids=["reduced vocabulary", "full vocabulary"])
@pytest.mark.parametrize("own_embedding", [True, False], ids=["own embedding", "shared embedding"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_with_and_without_embedding_and_reduced_vocabulary(
    layout: str,
    own_embedding: bool,
    reduced: bool,
    tiny_target: TinyTarget,
    tiny_reference: LlamaForCausalLM,
    tmp_path: Path,
) -> None:
    config = head_config(norm_before_residual=False)
    config["draft_vocab_size"] = DRAFT_VOCAB if reduced else VOCAB
    tensors = head_tensors(config, seed=3, own_embedding=own_embedding)
    allowed = None
    if reduced:
        allowed = set((torch.arange(DRAFT_VOCAB) + tensors["d2t"]).tolist())
    else:
        del tensors["d2t"], tensors["t2d"]
    save_head(tmp_path, *LAYOUTS[layout](config, tensors))
    check_drafts(tiny_target, tiny_reference, tmp_path, Expected(tiny_reference, tensors, config), allowed)


PARTS: dict[str, dict[str, Any]] = {
    "normed residual": {"norm_before_residual": True},
    "norm before fc": {"norm_before_fc": True},
    "normed output": {"norm_output": True},
    "all norms": {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    "attention bias": {"attention_bias": True},
    "scaled RoPE": {"rope_theta": 777.0},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PARTS)
def test_optional_parts(
    name: str, layout: str, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    config = head_config(**({"norm_before_residual": False} | PARTS[name]))
    tensors = head_tensors(config, seed=4)
    save_head(tmp_path, *LAYOUTS[layout](config, tensors))
    check_drafts(tiny_target, tiny_reference, tmp_path, Expected(tiny_reference, tensors, config))


@pytest.mark.parametrize("name", PARTS)
def test_optional_parts_matter(name: str, tiny_reference: LlamaForCausalLM) -> None:
    """Or the test above would prove nothing."""
    config = head_config(**PARTS[name])
    tensors = head_tensors(config, seed=4)
    plain = {key: tensor for key, tensor in tensors.items() if not key.endswith(".bias")}
    tokens = PROMPTS["of 19"]
    different = Expected(tiny_reference, tensors, config).drafts(tokens, 8)
    assert different != Expected(tiny_reference, plain, head_config()).drafts(tokens, 8)


@pytest.mark.parametrize(("stated", "normed"), [(None, True), (False, False), (True, True)])
def test_speculators_norm_the_residual_unless_they_say_otherwise(
    stated: bool | None, normed: bool, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    config = head_config()
    tensors = head_tensors(config, seed=5)
    saved, renamed = as_speculators(config | {"norm_before_residual": stated}, tensors)
    save_head(tmp_path, saved, renamed)
    expected = Expected(tiny_reference, tensors, config | {"norm_before_residual": normed})
    check_drafts(tiny_target, tiny_reference, tmp_path, expected)


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, (1, 2, 3)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, (2, 3, 4)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4]}}, (2, 3, 4)),
        ({}, (2, 2, 1)),
    ],
    ids=["at the top", "outputs, nested", "boundaries, nested", "by default"],
)
def test_layer_ids_mean_boundaries_of_the_target(
    changes: dict[str, Any],
    layers: tuple[int, ...],
    tiny_target: TinyTarget,
    tiny_reference: LlamaForCausalLM,
    tmp_path: Path,
) -> None:
    config = head_config()
    del config["eagle_aux_hidden_state_layer_ids"]
    tensors = head_tensors(config, seed=6)
    save_head(tmp_path, config | changes, tensors)
    expected = Expected(tiny_reference, tensors, config, layers)
    check_drafts(tiny_target, tiny_reference, tmp_path, expected)
    one_off = Expected(tiny_reference, tensors, config, [layer - 1 for layer in layers])
    tokens = PROMPTS["of 19"]
    assert one_off.drafts(tokens, 8) != expected.drafts(tokens, 8)


def test_a_head_of_another_width_reads_the_targets_states_with_its_own_embedding(
    tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    config = head_config(hidden_size=48, target_hidden_size=64)
    tensors = head_tensors(config, seed=7, own_embedding=True)
    save_head(tmp_path, config, tensors)
    check_drafts(tiny_target, tiny_reference, tmp_path, Expected(tiny_reference, tensors, config))


@pytest.mark.parametrize("rows", [190, 210])
def test_an_embedding_padded_otherwise_than_the_targets(
    rows: int, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM, tmp_path: Path
) -> None:
    """Checkpoints of one family pad their vocabularies to different sizes; tokens exist below both."""
    config = head_config(vocab_size=min(rows, 190), draft_vocab_size=DRAFT_VOCAB)
    tensors = head_tensors(config, seed=8, own_embedding=True)
    more = torch.zeros(max(rows, VOCAB) - 190, 64)
    padded = torch.cat([tensors["embed_tokens.weight"], more])
    saved = tensors | {"embed_tokens.weight": padded[:rows]}
    save_head(tmp_path, config | {"vocab_size": rows}, saved)
    expected = Expected(tiny_reference, tensors | {"embed_tokens.weight": padded}, config)
    check_drafts(tiny_target, tiny_reference, tmp_path, expected)


@pytest.mark.parametrize("own_embedding", [True, False], ids=["own embedding", "shared embedding"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"norm_before_fc": True, "norm_output": True, "attention_bias": True}, {"rms_norm_eps": 0.1}],
    ids=["plain", "all parts", "large epsilon"],
)
@pytest.mark.parametrize(("hidden_multiple", "vocab_multiple"), [(48, 1), (1, 64), (48, 64)])
def test_padding_gives_the_unpadded_drafts(
    hidden_multiple: int,
    vocab_multiple: int,
    changes: dict[str, Any],
    own_embedding: bool,
    tiny_folder: Path,
    tiny_reference: LlamaForCausalLM,
    tmp_path: Path,
) -> None:
    """64 wide in 96, the three states of fc and the two of q, k and v each; 200 tokens in 256 rows, 60 drafts in 64."""
    backend = CpuBackend("float32", num_threads=1, hidden_multiple=hidden_multiple, vocab_multiple=vocab_multiple)
    config = head_config(**changes)
    tensors = head_tensors(config, seed=9, own_embedding=own_embedding)
    save_head(tmp_path, config, tensors)
    target = TinyTarget(tiny_folder, backend=backend)
    check_drafts(target, tiny_reference, tmp_path, Expected(tiny_reference, tensors, config))


def test_rows_of_padding_are_never_drafted(tiny_folder: Path, tmp_path: Path) -> None:
    """Their score is 0, which here is above every true one."""
    tensors = head_tensors(head_config(), seed=11)
    tensors["lm_head.weight"].abs_()
    save_head(tmp_path, head_config(), tensors)
    target = TinyTarget(tiny_folder, backend=CpuBackend("float32", num_threads=1, vocab_multiple=64))
    head = Eagle3Head(tmp_path, target.shape, target.model.embedding, target.backend, 64)
    states = -torch.rand(9, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        drafts = head.draft(states)
    scores = torch.nn.functional.rms_norm(states, (64,), tensors["norm.weight"], 1e-5) @ tensors["lm_head.weight"].T
    assert (scores < 0).all()
    best = scores.argmax(-1)
    assert drafts.tolist() == (best + tensors["d2t"][best]).tolist()


def test_the_fc_of_gpt_oss_is_padded_in_three_pieces(tmp_path: Path) -> None:
    """The first seed's sizes: [2880, 3 * 2880] becomes [3072, 3 * 3072]."""
    target_folder, head_folder = tmp_path / "target", tmp_path / "head"
    sizes: dict[str, Any] = {"hidden_size": 2880, "num_attention_heads": 4, "head_dim": 16}
    reference = write_target(target_folder, initializer_range=0.05, **sizes)
    config = head_config(**sizes)
    tensors = head_tensors(config, seed=10)
    save_head(head_folder, config, tensors)
    target = TinyTarget(target_folder, backend=CpuBackend("float32", num_threads=1, hidden_multiple=1024))
    assert target.model.embedding.shape == (VOCAB, 3072)
    check_drafts(target, reference, head_folder, Expected(reference, tensors, config))
