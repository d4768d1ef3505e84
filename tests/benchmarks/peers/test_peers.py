"""The command on a tiny model: our engine and transformers, each in a process of its own."""

import sys
from pathlib import Path

import pytest

from benchmarks.peers.__main__ import main
from benchmarks.peers.contestants import OURS, Entry, contestants
from benchmarks.peers.lines import Ask
from benchmarks.peers.workers.eyrie import SCHEDULE, Eyrie
from benchmarks.peers.workers.transformers_generate import ASSISTED, Transformers
from benchmarks.results import read_results
from replicas.errors import ConfigError
from serve_app.serve_config import load_own_model
from tests.benchmarks.tiny_sweep import write_sweep


@pytest.fixture
def deployment(tmp_path: Path, tiny_folder: Path, tiny_head: Path) -> Path:
    write_sweep(tmp_path, tiny_folder, tiny_head)
    return tmp_path / "deployment.yaml"


def test_workers_give_the_models_own_tokens_in_every_mode(deployment: Path, tmp_path: Path) -> None:
    eyrie, transformers = Eyrie(deployment, "tiny", 3), Transformers(str(tmp_path / "target"))
    for prompt in ([5, 6, 7], [9, 9, 9, 9]):
        answers = [eyrie.answer(Ask(prompt, 12, mode)) for mode in (SCHEDULE, "0", "2")]
        answers += [transformers.answer(Ask(prompt, 12, mode)) for mode in ("", ASSISTED)]
        assert {tuple(answer.token_ids) for answer in answers} == {tuple(answers[0].token_ids)}
        for answer in answers:
            assert len(answer.token_ids) == 12
            assert sum(count for _, count in answer.chunks) == 12
            moments = [moment for moment, _ in answer.chunks]
            assert moments == sorted(moments)
            assert moments[0] > 0
        # Plain decoding: a step a token.
        assert [len(answers[index].chunks) for index in (1, 3)] == [12, 12]


def test_the_command_races_and_tells(
    deployment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [str(deployment), "--peers", "transformers", "--python", f"transformers={sys.executable}", "--k", "0"]
    arguments += ["--prompts", str(tmp_path / "prompts.jsonl"), "--limit", "2", "--tokens", "9"]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "\n| **Eyrie, its K schedule** | " in table
    assert "\n| transformers `generate`, fp32 | " in table
    results = read_results(tmp_path / "results" / "peers" / "tiny.jsonl")
    (session,) = results.sessions
    assert session.provenance["transformers"].startswith("transformers 5.")
    assert {row.session for row in results.race_answers} == {session.id}
    texts: dict[int, set[str]] = {}
    for row in results.race_answers:
        texts.setdefault(row.prompt, set()).add(row.text)
    assert texts
    assert all(len(of) == 1 for of in texts.values())
    # Measures nothing, and gives the same table.
    assert main([str(deployment), "--render"]) == 0
    assert capsys.readouterr().out == table


def test_contestants_share_a_worker_where_they_share_a_model(deployment: Path, tiny_head: Path) -> None:
    peers = ["transformers", "transformers-assisted", "vllm-eagle3"]
    found = contestants(Entry(deployment, load_own_model(deployment), [0, 2], peers))
    assert [one.label for one in found] == [
        OURS,
        "Eyrie, K=0",
        "Eyrie, K=2",
        "transformers `generate`, fp32",
        "transformers assisted generation (prompt lookup, 3 tokens), fp32",
        "vLLM, CPU, fp32, EAGLE3 with our head, K=3",
    ]
    assert len({one.worker for one in found}) == 3
    assert found[-1].worker.arguments == (str(deployment.parent / "target"), str(tiny_head), "3")


def test_a_peer_that_cannot_take_part_is_one_sentence(tmp_path: Path, tiny_folder: Path) -> None:
    write_sweep(tmp_path, tiny_folder, None)
    path = tmp_path / "deployment.yaml"
    model = load_own_model(path)
    for name, sentence in (
        ("nobody", "--peers: got 'nobody'; allowed: transformers, "),
        ("vllm-eagle3", "drafts with the config's EAGLE3 head, and tiny has none"),
        ("llama.cpp-f16", "llama.cpp reads GGUF files, and .* is none"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            contestants(Entry(path, model, [0], [name]))
