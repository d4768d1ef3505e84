"""A sweep over a vLLM that is a fake."""

from pathlib import Path

import yaml

from benchmarks.measuring import Task
from benchmarks.measuring_vllm import MeasuringVllm, in_few_starts
from benchmarks.results import Cell
from benchmarks.sweep_config import file_stem, load_sweep_config, measured_model
from benchmarks.vllm_client import StepClock
from replicas.scheduling.k_policy import KPolicy
from replicas.vllm_engine.config import VllmConfig
from replicas.vllm_engine.engine import StepListener, VllmEngine, build_vllm_engine
from replicas.vllm_engine.stats import VllmStats
from serve_app.k_policy import FixedK
from tests.benchmarks.tiny_sweep import write_sweep
from tests.replicas.vllm_engine.fake_vllm import FakeVllm


def test_the_runs_of_one_k_share_a_start(tmp_path: Path, tiny_folder: Path, tiny_head: Path) -> None:
    path = write_sweep(tmp_path, tiny_folder, tiny_head)
    deployment = tmp_path / "deployment.yaml"
    data = yaml.safe_load(deployment.read_text())
    [model] = data["applications"][0]["args"]["models"]
    for key in ("num_threads", "block_size", "max_num_batched_tokens"):
        del model[key]
    model |= {"engine": "vllm", "device": "cpu"}
    deployment.write_text(yaml.safe_dump(data))
    config = load_sweep_config(path)
    name, engine = measured_model(config)
    assert isinstance(engine, VllmConfig)
    assert file_stem(name, engine) == "tiny-cpu-vllm"
    libraries: list[FakeVllm] = []

    def build(config: VllmConfig, policy: KPolicy, listener: StepListener) -> VllmEngine:
        libraries.append(FakeVllm())
        return build_vllm_engine(config, policy, libraries[-1], listener)

    measuring = MeasuringVllm(config, engine, build)
    tasks = in_few_starts([Task(Cell(k, batch), 0) for batch in (1, 2) for k in (2, 0)])
    assert [task.cell for task in tasks] == [Cell(0, 1), Cell(0, 2), Cell(2, 1), Cell(2, 2)]
    runs = [measuring.run(task, "s", FixedK(task.cell.k or 0)) for task in tasks]
    measuring.close()
    tables = [
        library.arguments["speculative_config"].get("num_speculative_tokens_per_batch_size") for library in libraries
    ]
    assert tables == [[[1, 2, 0]], None]
    assert all(library.engine.was_shut_down for library in libraries)
    assert libraries[0].arguments["enable_prefix_caching"] is False
    assert [len(run.trace.answers) for run in runs] == [3, 4, 3, 4]
    for run in runs:
        assert [len(answer.token_ids) for answer in run.trace.answers] == [6] * len(run.trace.answers)
        assert run.acceptance.accepted == 3 * len(run.trace.answers)
    # Alone, each answer has two steps after its prompt's.
    assert [step.tokens for step in runs[0].trace.steps] == [3, 2] * 3


def test_steps_of_a_full_batch_alone_are_timed() -> None:
    clock = StepClock()
    for stats in (
        VllmStats(running=2, steps=1, generated_tokens=2, prompt_tokens=8),
        VllmStats(running=2, steps=2, generated_tokens=6, prompt_tokens=8),  # the only full one
        VllmStats(running=2, steps=3, generated_tokens=9, prompt_tokens=12),  # a prompt came in
        VllmStats(running=2, steps=5, generated_tokens=12, prompt_tokens=12),  # a step was not heard of
        VllmStats(running=1, steps=6, generated_tokens=15, prompt_tokens=12),  # full until its end
        VllmStats(running=1, steps=7, generated_tokens=16, prompt_tokens=12),  # one alone
    ):
        clock.hear(stats)
    assert [step.tokens for step in clock.take(2)] == [4, 3]
    assert clock.take(2) == ()
