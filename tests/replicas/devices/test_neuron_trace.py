"""Whole engines through a stand-in of torch_neuronx.trace: the CPU backend's tokens, one trace a program, one state."""

import sys
from pathlib import Path

import pytest

from replicas.config import EngineConfig
from replicas.devices.neuron_trace import NeuronTraceBackend
from replicas.errors import ConfigError
from tests.reference.hand_built_engine import Answer, TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK
from tests.replicas.devices.fake_torch_neuronx import FakeTorchNeuronx

pytestmark = [  # of the stand-in's recorder
    pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@pytest.fixture(name="runtime")
def _runtime(monkeypatch: pytest.MonkeyPatch) -> FakeTorchNeuronx:
    fake = FakeTorchNeuronx()
    monkeypatch.setitem(sys.modules, "torch_neuronx", fake)
    return fake


def config(target: TinyTarget) -> EngineConfig:
    """Few buckets: one context, one chunk, batches of 1 and 2."""
    return target.config(max_model_len=64, max_num_seqs=2, max_num_batched_tokens=16)


def tokens_of(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {name: answer.token_ids for name, answer in answers.items()}


@pytest.mark.parametrize("k", [0, 3])
def test_traced_programs_give_the_cpu_s_tokens(
    k: int, tiny_folder: Path, tiny_head: Path, runtime: FakeTorchNeuronx
) -> None:
    requests = [
        greedy_request("short", (5, 9, 40), 40),
        greedy_request("long", tuple(range(30, 52)), 12),
        greedy_request("late", (7,) * 9, 8),
    ]
    on_cpu = TinyTarget(tiny_folder, max_model_len=64)
    plain = generate(on_cpu.bench(config(on_cpu), FixedK(k), head=tiny_head).engine, requests)
    traced = TinyTarget(tiny_folder, max_model_len=64, backend=NeuronTraceBackend("float32"))
    bench = traced.bench(config(traced), FixedK(k), head=tiny_head)
    answers = generate(bench.engine, requests)

    assert tokens_of(answers) == tokens_of(plain)
    assert (answers["short"].last.acceptance.drafted > 0) == (k > 0)
    assert len(runtime.traced) == bench.runner.num_programs > 2
    # One KV a model, whichever program updates it; only the first trace carries it to the core.
    assert {tuple(map(id, module.states)) for module in runtime.traced} == {tuple(map(id, runtime.traced[0].states))}
    assert [module.core for module in runtime.traced] == [0] + [None] * (len(runtime.traced) - 1)


def test_sampled_tokens_are_the_cpu_s(tiny_folder: Path, tiny_head: Path, runtime: FakeTorchNeuronx) -> None:
    requests = [greedy_request("a", (5, 9, 40), 24, temperature=0.8, top_k=20, seed=3)]
    answers: list[dict[str, list[int]]] = []
    for target in (
        TinyTarget(tiny_folder, max_model_len=64),
        TinyTarget(tiny_folder, max_model_len=64, backend=NeuronTraceBackend("float32")),
    ):
        bench = target.bench(config(target), FixedK(2), head=tiny_head)
        answers.append(tokens_of(generate(bench.engine, requests)))
    assert answers[0] == answers[1]
    assert runtime.traced


def test_without_torch_neuronx_the_sentence_says_what_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"device is 'neuron', which needs torch-neuronx 2\.9"):
        NeuronTraceBackend("bfloat16")


def test_trace_is_for_one_core_of_neuron() -> None:
    with pytest.raises(ValueError, match="executor is trace, but device is cpu: only neuron"):
        EngineConfig(model="m", executor="trace")
    with pytest.raises(ValueError, match="executor is trace, but tensor_parallel_size is 2"):
        EngineConfig(model="m", device="neuron", dtype="bfloat16", executor="trace", tensor_parallel_size=2)
