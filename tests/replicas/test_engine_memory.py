"""The plan of an engine against the engine itself."""

from pathlib import Path

import pytest

from replicas.config import EngineConfig, SpeculativeConfig
from replicas.devices.memory_plan import MemoryPlan, MemoryPool
from replicas.engine import build_engine
from replicas.engine_memory import Placement, cpu_placement, neuron_placement, placement_of, plan_engine
from replicas.engine_programs import buckets_of, compiled_programs
from replicas.errors import ConfigError
from replicas.models.registry import target_config
from tests.reference.k_policies import FixedK
from tests.reference.tiny_checkpoints import DRAFT_VOCAB, HIDDEN, VOCAB


def config_of(target: Path, head: Path | None, **changes: object) -> EngineConfig:
    speculative = head and SpeculativeConfig(method="eagle3", model=str(head), num_speculative_tokens=3)
    fields = {"model": str(target), "max_model_len": 128, "max_num_seqs": 2, "dtype": "float32"} | changes
    return EngineConfig.model_validate(fields | {"speculative_config": speculative})


def plan(config: EngineConfig, placement: Placement | None = None) -> MemoryPlan:
    folder = Path(config.model)
    return plan_engine(
        config, target_config(folder), folder, buckets_of(config), placement or cpu_placement(config.dtype)
    )


def test_weights_and_kv_are_those_of_the_engine(tiny_folder: Path, tiny_head: Path) -> None:
    config = config_of(tiny_folder, tiny_head)
    found = plan(config)
    engine = build_engine(config, FixedK(3))
    assert engine.stats().total_blocks == found.num_blocks - 1 == 2 * 8
    # Target: 4 layers of 2 KV heads; head: 1 layer of 1; 16 elements a head, keys and values, float32.
    assert found.block_bytes == 16 * (4 * 2 + 1 * 1) * 2 * 16 * 4
    layer = HIDDEN * (HIDDEN + 2 * 32 + HIDDEN + 3 * 96) + 2 * HIDDEN
    assert found.target_weights == 4 * (2 * VOCAB * HIDDEN + HIDDEN + 4 * layer)
    head = HIDDEN * (3 * HIDDEN + 2 * (HIDDEN + 2 * 16) + HIDDEN + 3 * 80 + DRAFT_VOCAB) + 4 * HIDDEN
    assert found.drafter_weights == 4 * (head + DRAFT_VOCAB)


def test_a_smaller_max_num_seqs_and_no_head_need_less(tiny_folder: Path, tiny_head: Path) -> None:
    whole, plain = plan(config_of(tiny_folder, tiny_head)), plan(config_of(tiny_folder, None))
    assert plain.drafter_weights == 0 < whole.drafter_weights
    assert plain.block_bytes < whole.block_bytes
    assert plain.num_blocks == plan(config_of(tiny_folder, None, max_num_seqs=1)).num_blocks + 8


def test_a_rank_on_a_neuroncore_holds_half_of_what_is_split(tiny_folder: Path, tiny_head: Path) -> None:
    config = config_of(tiny_folder, tiny_head)
    one, two = (plan(config, neuron_placement(ranks, num_programs=10)) for ranks in (1, 2))
    assert one.target_weights == plan(config).target_weights / 2
    norms = 2 * HIDDEN * (1 + 2 * 4)
    assert two.target_weights - norms == (one.target_weights - norms) / 2
    # The target's KV heads are split; the head's only one is replicated.
    assert (one.block_bytes, two.block_bytes) == (16 * 9 * 64, 16 * 5 * 64)


def test_traced_programs_hold_weights_of_their_own(tiny_folder: Path) -> None:
    config = config_of(tiny_folder, None, device="neuron", dtype="bfloat16")
    lazy, traced = (plan(c, placement_of(c)) for c in (config, config.model_copy(update={"executor": "trace"})))
    assert traced.target_weights == len(compiled_programs(config)) * lazy.target_weights


def test_what_does_not_fit_is_refused_before_a_weight_is_read(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replicas.engine_memory.available_memory", lambda: 2**20)
    monkeypatch.setattr("replicas.engine_runner.load_target", lambda *_: pytest.fail("read"))
    with pytest.raises(ConfigError, match=r"GiB are needed of this machine's free memory, which has 0\.00 \(weights"):
        build_engine(config_of(tiny_folder, None), FixedK(0))


def test_kv_shrinks_to_what_is_free_but_never_below_a_sequence(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tiny_folder, None, max_num_seqs=8)
    whole = plan(config)
    free = whole.fixed + 20 * whole.block_bytes
    monkeypatch.setattr("replicas.engine_memory.available_memory", lambda: free)
    engine = build_engine(config, FixedK(0))
    assert engine.stats().total_blocks == 19
    assert "KV has 20 blocks; max_num_seqs wants 65" in caplog.text


def test_capacity_is_the_pool_s(tiny_folder: Path) -> None:
    placement = cpu_placement("float16")
    assert placement.pool.capacity > 2**28
    small = Placement(MemoryPool("a core", 2**20), 1, placement.precision, converts_weights=True)
    assert plan(config_of(tiny_folder, None), small).sequences_that_fit == 0
