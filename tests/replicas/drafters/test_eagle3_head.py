"""Heads that cannot be used, and the sentences that say why."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from replicas.drafters.eagle3_head import Eagle3Head
from replicas.errors import CheckpointError
from tests.reference.hand_built_engine import TinyTarget
from tests.reference.tiny_checkpoints import write_head


def load(folder: Path, target: TinyTarget) -> Eagle3Head:
    return Eagle3Head(folder, target.shape, target.model.embedding, target.backend, 64)


def test_a_reduced_vocabulary_needs_its_map(tiny_target: TinyTarget, tmp_path: Path) -> None:
    write_head(tmp_path, without=("d2t",))
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, tiny_target)
    sentence = f"{tmp_path} drafts 60 of 200 tokens (draft_vocab_size) but has no tensor 'd2t'"
    assert str(error.value) == sentence


def test_a_full_vocabulary_needs_no_map(tiny_target: TinyTarget, tmp_path: Path) -> None:
    tensors = write_head(tmp_path, without=("d2t", "t2d"), draft_vocab_size=200)
    state = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        drafts = load(tmp_path, tiny_target).draft(state)
    normed = torch.nn.functional.rms_norm(state, (64,), tensors["norm.weight"], 1e-5)
    assert drafts.tolist() == (normed @ tensors["lm_head.weight"].T).argmax(-1).tolist()


def test_drafts_are_mapped_to_target_ids(tiny_target: TinyTarget, tmp_path: Path) -> None:
    tensors = write_head(tmp_path)
    head = load(tmp_path, tiny_target)
    # Rows of the lm_head whose own direction makes each of them the best in turn.
    tensors["lm_head.weight"] = torch.eye(60, 64)
    tensors["norm.weight"] = torch.ones(64)
    save_file(tensors, tmp_path / "model.safetensors")
    head = load(tmp_path, tiny_target)
    with torch.inference_mode():
        drafts = head.draft(torch.eye(60, 64))
    assert drafts.dtype == torch.int32
    assert drafts.tolist() == tensors["t2d"].nonzero().flatten().tolist()


@pytest.mark.parametrize("offset", [-1, 1])
def test_a_map_out_of_the_vocabulary_is_refused(offset: int, tiny_target: TinyTarget, tmp_path: Path) -> None:
    tensors = write_head(tmp_path)
    end = 0 if offset < 0 else 59
    tensors["d2t"][end] = offset if offset < 0 else 200 - 59
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="tensor 'd2t' maps outside the target's 200 tokens"):
        load(tmp_path, tiny_target)


def test_another_hidden_size_is_refused(tiny_target: TinyTarget, tmp_path: Path) -> None:
    write_head(tmp_path, hidden_size=48)
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, tiny_target)
    assert str(error.value) == f"{tmp_path}/config.json: hidden_size is 48, but the target's is 64"


@pytest.mark.parametrize("layers", [[0, 2, 5], [-1, 2, 3]])
def test_tapped_layers_must_exist(layers: list[int], tiny_target: TinyTarget, tmp_path: Path) -> None:
    write_head(tmp_path, eagle_aux_hidden_state_layer_ids=layers)
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, tiny_target)
    assert str(error.value) == (
        f"{tmp_path}/config.json: eagle_aux_hidden_state_layer_ids is {layers}, "
        f"but the target has the inputs of layers 0 to 3 "
        f"and, as 4, the output of the last"
    )


def test_tapped_layers_come_from_the_config_or_the_target(tiny_target: TinyTarget, tmp_path: Path) -> None:
    write_head(tmp_path, eagle_aux_hidden_state_layer_ids=[4, 0, 1])
    assert load(tmp_path, tiny_target).tapped_layers == (4, 0, 1)
    config = (tmp_path / "config.json").read_text().replace("eagle_aux_hidden_state_layer_ids", "something_else")
    (tmp_path / "config.json").write_text(config)
    assert load(tmp_path, tiny_target).tapped_layers == tiny_target.shape.default_tapped_layers == (2, 2, 1)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("fc.weight", (64, 192)), ("midlayer.self_attn.q_proj.weight", (64, 128)), ("norm.weight", (64,))],
)
def test_missing_and_misshapen_tensors_are_named(
    name: str, shape: tuple[int, ...], tiny_target: TinyTarget, tmp_path: Path
) -> None:
    write_head(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = torch.zeros(3, 3)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as error:
        load(tmp_path, tiny_target)
    assert str(error.value) == f"{tmp_path}: tensor '{name}' has shape (3, 3), config.json asks for {shape}"
    write_head(tmp_path, without=(name,))
    with pytest.raises(CheckpointError, match=f"has no tensor '{name}'"):
        load(tmp_path, tiny_target)
