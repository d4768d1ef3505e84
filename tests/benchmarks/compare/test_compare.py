"""The command on a tiny model: it runs, matches, and records where its figures came from."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import LlamaForCausalLM

from benchmarks.compare.__main__ import main
from benchmarks.compare.contestants import alone
from benchmarks.compare.near_ties import differences, logit_gap
from benchmarks.compare.race import Lap, Race, TimedAnswer, TimedEngine
from benchmarks.metrics import Answer
from replicas.config import EngineConfig
from replicas.request import Acceptance
from tests.reference.decoding import full_logits, greedy
from tests.reference.tiny_checkpoints import write_head, write_target

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    """A tiny target that chats."""
    folder = tmp_path_factory.mktemp("chatting")
    reference = write_target(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    return folder, reference


def engine_config(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), dtype="float32", num_threads=1, max_model_len=128)


def test_the_command_writes_a_table_and_its_sources(
    target: tuple[Path, LlamaForCausalLM], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_head(tmp_path / "head")
    model = engine_config(target[0]).model_dump(exclude_none=True) | {"id": "tiny"}
    application = {"name": "a", "import_path": "serve_app.app:build", "args": {"models": [model]}}
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"http_options": {"host": "127.0.0.1"}, "applications": [application]})
    )
    prompts = [{"turns": [text]} for text in ("abcabc", "no no no", "xyz")]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    drafters = f"ngram,eagle3={tmp_path / 'head'},small={target[0]}"
    options = ["--k", "1,3", "--prompts", str(tmp_path / "prompts.jsonl"), "--tokens", "12"]
    arguments = [str(tmp_path / "config.yaml"), "--drafter", drafters, *options, "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == (tmp_path / "out.md").read_text().strip()
    content = json.loads((tmp_path / "out.json").read_text())
    assert [(mode["name"], mode["k"]) for mode in content["modes"]] == [
        ("ngram", 1), ("ngram", 3), ("eagle3", 1), ("eagle3", 3), ("small", 1), ("small", 3)
    ]  # fmt: skip
    assert all(mode["matched"] for mode in content["modes"])
    assert content["provenance"]["commit"]
    by_mode = {(mode["name"], mode["k"]): mode for mode in content["modes"]}
    assert by_mode["small", 3]["acceptance_rate"] == 1.0, "the target drafts for itself"
    assert by_mode["small", 3]["draft_seconds"] > by_mode["small", 1]["draft_seconds"] > 0
    assert len(content["plain"]) == len(by_mode["eagle3", 1]["answers"]) == 3
    assert "token_ids" not in json.dumps(content)


def test_a_fault_is_one_sentence(target: tuple[Path, LlamaForCausalLM], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--drafter", "medusa"]) == 1
    assert capsys.readouterr().err.startswith("error: --drafter: got 'medusa'; allowed:")
    assert main(["--drafter", "ngram", "--model", "absent"]) == 1
    assert "--model: got 'absent'" in capsys.readouterr().err


def test_a_difference_is_told_with_the_gap_of_the_target_s_logits(target: tuple[Path, LlamaForCausalLM]) -> None:
    folder, reference = target
    plain = TimedEngine.build(alone(engine_config(folder), None))
    prompt = (5, 9, 17, 30, 2)
    right = greedy(reference, prompt, 6)
    logits = full_logits(reference, (*prompt, *right[:3]))[-1]
    second = int(logits.topk(2).indices[1])

    def answered(tokens: tuple[int, ...]) -> TimedAnswer:
        return TimedAnswer(Answer(0.1, 0.2, len(tokens)), tokens, Acceptance(), 0.1, 0.0)

    race = Race(Lap(None, 0, [answered(right), answered(right)]), [], [prompt, prompt], plain)
    (found,) = differences(race, [right, (*right[:3], second, 1, 1)])
    assert (found.prompt, found.token) == (1, 3)
    assert found.gap == pytest.approx(float(logits.max() - logits[second]), abs=1e-3)
    assert found.is_near_tie == (found.gap < 0.01)
    worst = int(logits.argmin())
    least = torch.topk(logits, 20).values[-1]
    gap = logit_gap(plain.engine, (*prompt, *right[:3]), right[3], worst)
    assert gap == pytest.approx(float(logits.max() - least), abs=1e-3), "at least as far as the best 20 reach"
