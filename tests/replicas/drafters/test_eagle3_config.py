"""What the config.json of a head may get wrong, and the sentences that say so."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from replicas.drafters.eagle3_config import Eagle3Config, read_eagle3_config
from replicas.drafters.eagle3_head import Eagle3Head
from replicas.errors import CheckpointError
from tests.reference.hand_built_engine import TinyTarget
from tests.reference.tiny_checkpoints import as_speculators, head_config, head_tensors, save_head, write_head

IDS = "eagle_aux_hidden_state_layer_ids"


def read(folder: Path, target: TinyTarget, fields: dict[str, Any]) -> Eagle3Config:
    (folder / "config.json").write_text(json.dumps(fields))
    return read_eagle3_config(folder, target.shape)


def load(folder: Path, target: TinyTarget) -> Eagle3Head:
    return Eagle3Head(folder, target.shape, target.model.embedding, target.backend, 64)


def test_what_is_not_said(tiny_target: TinyTarget, tmp_path: Path) -> None:
    fields = head_config()
    for name in ("draft_vocab_size", IDS):
        fields[name] = None
    head = read(tmp_path, tiny_target, fields)
    assert head.draft_vocab_size == head.decoder.vocab_size == 200
    assert head.tapped_layers == tiny_target.shape.default_tapped_layers
    assert (head.norm_before_residual, head.norm_before_fc, head.norm_output) == (False, False, False)


@pytest.mark.parametrize(("nested", "top", "expected"), [(True, None, True), (True, False, False), (None, True, True)])
def test_norm_before_fc_may_be_nested(
    nested: bool | None, top: bool | None, expected: bool, tiny_target: TinyTarget, tmp_path: Path
) -> None:
    head = read(tmp_path, tiny_target, head_config(norm_before_fc=top, eagle_config={"norm_before_fc": nested}))
    assert head.norm_before_fc is expected


@pytest.mark.parametrize(
    ("top", "nested", "expected"),
    [([2, 3, 4], [1, 2, 3], (2, 3, 4)), ([2, 3, 4], [2, 3, 4], (2, 3, 4)), (None, [0, 2, 4], (0, 2, 4))],
)
def test_layer_ids_at_two_places_may_agree(
    top: list[int] | None, nested: list[int], expected: tuple[int, ...], tiny_target: TinyTarget, tmp_path: Path
) -> None:
    fields = head_config(**{IDS: top, "eagle_config": {IDS: nested}})
    assert read(tmp_path, tiny_target, fields).tapped_layers == expected


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "ids contradict": (
        {IDS: [1, 2, 3], "eagle_config": {IDS: [1, 2, 3]}},
        f"{IDS} the inputs of layers [1, 2, 3] and eagle_config.{IDS} the inputs of layers [2, 3, 4] contradict each "
        "other; keep one of the two fields",
    ),
    "nested ids out of range": (
        {IDS: None, "eagle_config": {IDS: [1, 2, 4]}},
        f"eagle_config.{IDS} is [2, 3, 5], but the target has the inputs of layers 0 to 3 and, as 4, the output of the "
        "last",
    ),
    "ids no numbers": ({IDS: ["2"]}, f"{IDS}.0: Input should be a valid integer"),
    "no aux states": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        "eagle_config.use_aux_hidden_state is false; only heads that fuse layers' states are supported",
    ),
    "more layers": ({"num_hidden_layers": 2}, "num_hidden_layers is 2; an EAGLE3 head has 1"),
    "target of another size": ({"target_hidden_size": 48}, "target_hidden_size is 48, but the target's is 64"),
    "another speculator": (
        {"speculators_model_type": "eagle", "transformer_layer_config": {}},
        "speculators_model_type is 'eagle'; only 'eagle3' is supported",
    ),
    "another algorithm": (
        {"speculators_config": {"algorithm": "mlp"}},
        "speculators_model_type is 'mlp'; only 'eagle3' is supported",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, tiny_target: TinyTarget, tmp_path: Path) -> None:
    changes, sentence = FAULTS[name]
    with pytest.raises(CheckpointError) as error:
        read(tmp_path, tiny_target, head_config(**changes))
    assert str(error.value) == f"{tmp_path / 'config.json'}: {sentence}"


def test_speculators_need_their_layer(tiny_target: TinyTarget, tmp_path: Path) -> None:
    fields, _ = as_speculators(head_config(), {})
    del fields["transformer_layer_config"]
    with pytest.raises(CheckpointError) as error:
        read(tmp_path, tiny_target, fields)
    assert str(error.value) == (
        f"{tmp_path / 'config.json'} has no field 'transformer_layer_config', which the speculators layout needs"
    )


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"layer_types": ["sliding_attention"], "use_sliding_window": True, "sliding_window": 63}, 63),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 40}, 40),
        ({"max_position_embeddings": 40}, 40),
        ({}, 512),
    ],
)
def test_a_head_knows_the_length_up_to_which_it_is_exact(
    fields: dict[str, Any], limit: int, tiny_target: TinyTarget, tmp_path: Path
) -> None:
    config = head_config(**fields)
    save_head(tmp_path, *as_speculators(config, head_tensors(config)))
    assert load(tmp_path, tiny_target).max_positions == limit


def test_a_sliding_window_of_no_size_is_refused(tiny_target: TinyTarget, tmp_path: Path) -> None:
    config = head_config(layer_types=["sliding_attention"], use_sliding_window=True, sliding_window=None)
    save_head(tmp_path, *as_speculators(config, head_tensors(config)))
    with pytest.raises(CheckpointError, match=r"sliding window .* only supported up to 0 tokens"):
        load(tmp_path, tiny_target)


@pytest.mark.parametrize("layout", ["SafeAILab", "speculators"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("midlayer.self_attn.q_proj.bias", (64,)), ("midlayer.self_attn.q_norm.weight", (16,)), ("fc.bias", (64,))],
)
def test_a_tensor_that_would_be_ignored_is_refused(
    name: str, shape: tuple[int, ...], layout: str, tiny_target: TinyTarget, tmp_path: Path
) -> None:
    config, tensors = head_config(), head_tensors(head_config()) | {name: torch.ones(shape)}
    if layout == "speculators":
        config, tensors = as_speculators(config, tensors)
        name = name.replace("midlayer", "layers.0")
    save_head(tmp_path, config, tensors)
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, tiny_target)
    assert str(error.value) == (
        f"{tmp_path} holds tensor {name!r}, which no supported EAGLE3 head with its config.json has"
    )


def test_what_trainers_leave_behind_is_no_fault(tiny_target: TinyTarget, tmp_path: Path) -> None:
    tensors = head_tensors(head_config()) | {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_head(tmp_path, head_config(), tensors)
    load(tmp_path, tiny_target)


def test_no_known_layout_is_refused(tiny_target: TinyTarget, tmp_path: Path) -> None:
    write_head(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name.replace("midlayer", "block"): value for name, value in tensors.items()}, tmp_path / "model.safetensors"
    )
    with pytest.raises(CheckpointError, match=r"no tensor's name begins with 'midlayer\.' .* or 'layers\.0\.'"):
        load(tmp_path, tiny_target)


def test_a_head_of_another_width_needs_an_embedding(tiny_target: TinyTarget, tmp_path: Path) -> None:
    config = head_config(hidden_size=48, target_hidden_size=64)
    save_head(tmp_path, config, head_tensors(config))
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, tiny_target)
    assert str(error.value) == (
        f"{tmp_path} has no tensor 'embed_tokens.weight', and cannot share the target's embedding: its hidden_size is "
        "48, the target's 64"
    )


@pytest.mark.parametrize("layout", ["SafeAILab", "speculators"])
def test_a_reduced_vocabulary_without_its_map_is_refused_in_every_layout(
    layout: str, tiny_target: TinyTarget, tmp_path: Path
) -> None:
    config, tensors = head_config(), head_tensors(head_config())
    del tensors["d2t"]
    save_head(tmp_path, *(as_speculators(config, tensors) if layout == "speculators" else (config, tensors)))
    with pytest.raises(CheckpointError, match=r"drafts 60 of 200 tokens .* but has no tensor 'd2t'"):
        load(tmp_path, tiny_target)
