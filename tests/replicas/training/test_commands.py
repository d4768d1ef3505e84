"""The `generate` and `train` commands, one after the other, on a tiny target."""

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import run as torchrun
from transformers import AutoTokenizer

from replicas.training import generate, train, trainer
from replicas.training.measure import greedy_only, measure
from replicas.training.options import TrainOptions
from replicas.training.trainer import Trainer
from tests.reference.tiny_checkpoints import END, HIDDEN, write_target

TEMPLATE = "{% for m in messages %}#{{ m['content'] }}<eos>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
TAPS = (2, 2, 1)


def run(command, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    monkeypatch.setattr(sys, "argv", ["command", *words])
    command.main()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory):
    """(folder, model) of a tiny target with a chat template."""
    folder = tmp_path_factory.mktemp("target")
    model = write_target(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder, model


@pytest.fixture(scope="module")
def data(target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `generate` wrote in two runs."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "MAX_LENGTH", 64)
        patch.setattr(generate, "MAX_USER_TOKENS", 10)
        patch.setattr(generate, "SHARD_TOKENS", 300)
        arguments = {"target": target[0], "out": folder, "batch": 6, "dtype": "float32", "threads": 1}
        run(generate, patch, tokens=500, **arguments)
        first = {path.name: path.read_bytes() for path in folder.iterdir()}
        run(generate, patch, tokens=500, **arguments)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
        run(generate, patch, tokens=1500, **arguments)
    assert all((folder / name).read_bytes() == content for name, content in first.items())
    assert len(list(folder.iterdir())) > len(first)
    return folder


def conversations(folder: Path):
    """(tokens, states) of every conversation."""
    for path in sorted(folder.iterdir()):
        shard = load_file(path)
        lengths = shard["lengths"].tolist()
        yield from zip(shard["tokens"].long().split(lengths), shard["states"].split(lengths), strict=True)


@torch.inference_mode()
def test_the_states_are_the_targets(target, data):
    _, model = target
    written = list(conversations(data))
    assert sum(len(tokens) for tokens, _ in written) >= 1500
    for tokens, states in written[:8]:
        hidden = model.model(tokens[None], output_hidden_states=True)
        expected = torch.cat([*(hidden.hidden_states[layer] for layer in TAPS), hidden.last_hidden_state], -1)[0]
        torch.testing.assert_close(states[:-1].float(), expected[:-1], rtol=2e-3, atol=5e-3)
        assert not states[-1].any()


@torch.inference_mode()
def test_a_conversation_is_a_user_turn_and_an_answer_most_of_them_greedy(target, data):
    folder, model = target
    tokenizer = AutoTokenizer.from_pretrained(folder)
    start, to_answer = tokenizer.encode("#"), tokenizer.encode("<eos>>")
    greedy = 0
    answers = list(conversations(data))
    for tokens, _ in answers:
        ids = tokens.tolist()
        assert ids[:1] == start
        answer = ids.index(END) + len(to_answer)
        assert ids[answer - len(to_answer) : answer] == to_answer
        assert END not in ids[answer:-1]
        assert ids[-1] == END or len(ids) == 64
        best = model(tokens[None]).logits[0].argmax(-1).tolist()
        greedy += best[answer - 1 : -1] == ids[answer:]
    assert 0.4 < greedy / len(answers) < 0.8


OPTIONS = {
    "draft_vocab_size": 50, "batch_drafts": 32, "fit_rows": 300, "product_dtype": "float32", "threads": 1,
    "average_every": 2, "hold_out_every": 5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch):
    """A training step takes a sixteenth of a second, on any machine."""
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=itertools.count(0.0, 0.0625).__next__))


def provenance(folder: Path):
    return json.loads((folder / "PROVENANCE.json").read_text())


def test_training_writes_a_head_with_its_provenance_and_goes_on_from_its_checkpoint(
    target, data, tmp_path, monkeypatch
):
    places = {"target": target[0], "data": data, "out": tmp_path / "head", "work": tmp_path / "work"}
    run(train, monkeypatch, **places, **OPTIONS, minutes=0.08)
    first = provenance(tmp_path / "head")
    assert first["finished"]
    tokens = sum(len(tokens) for tokens, _ in conversations(data))
    command = "python -m replicas.training.generate --batch 6 --dtype float32 --seed 0"
    assert first["data"]["tokens"] == tokens
    assert first["data"]["written_by"] == [f"{command}: {tokens} tokens"]
    assert first["options"]["draft_vocab_size"] == 50
    assert (first["training"]["seconds"], first["training"]["batches_a_process"]) == (5, 78)
    losses = [loss for _, loss in first["training"]["first_step_loss"]]
    assert losses[-1] < losses[0]
    # What was written is what is measured: the exported head, read back, has the acceptance that is claimed.
    options = TrainOptions(draft_vocab_size=50, fit_rows=300, product_dtype="float32", hold_out_every=5)
    again = Trainer(target[0], data, tmp_path / "head", options)
    held_out = greedy_only(again.split()[1], again.target_head)
    acceptance = measure(again.head, again.embedding, again.draft_ids, held_out, 5)
    claimed = first["held_out_greedy_acceptance"]
    assert claimed["draft_positions"] == acceptance.first_drafts > 0
    assert claimed["per_draft_position"][0] == pytest.approx(acceptance.per_position[0], abs=0.02)

    run(train, monkeypatch, **places, **OPTIONS, minutes=0.1)
    second = provenance(tmp_path / "head")
    assert second["training"]["batches_a_process"] == 96
    assert second["training"]["first_step_loss"][: len(losses)] == first["training"]["first_step_loss"]


def test_training_goes_on_from_a_head_and_says_so(target, data, tmp_path, monkeypatch):
    places = {"target": target[0], "data": data}
    run(train, monkeypatch, **places, **OPTIONS, out=tmp_path / "a", work=tmp_path / "wa", minutes=0.01)
    # At a rate of almost nothing the second run's head is the first's.
    run(
        train, monkeypatch, **places, **OPTIONS, out=tmp_path / "b", work=tmp_path / "wb", minutes=0.005,
        learning_rate=1e-12, from_head=tmp_path / "a",
    )  # fmt: skip
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=2e-3, atol=1e-5)
    assert provenance(tmp_path / "b")["started_from"] == provenance(tmp_path / "a")
    assert "started_from" not in provenance(tmp_path / "a")
    assert after["fc.weight"].shape == (HIDDEN, 3 * HIDDEN)


def test_torchrun_takes_no_option_of_training_for_its_own():
    every = [action.option_strings[-1] for action in train.argument_parser()._actions if action.dest != "help"]
    words = [word for option in every for word in (option, "1")]
    told = torchrun.parse_args(["--nproc-per-node", "2", "-m", "replicas.training.train", *words])
    assert (told.nproc_per_node, told.training_script_args) == ("2", words)
