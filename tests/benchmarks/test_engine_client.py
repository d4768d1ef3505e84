"""Driving the tiny engine without HTTP."""

import pytest

from benchmarks.engine_client import engine_for_measuring, run_together
from replicas.config import EngineConfig, SpeculativeConfig
from replicas.errors import ConfigError
from replicas.request import SamplingParams
from serve_app.k_policy import FixedK
from tests.reference.hand_built_engine import TinyTarget


@pytest.fixture(scope="module")
def target(tiny_folder) -> TinyTarget:
    return TinyTarget(tiny_folder)


def test_no_more_run_at_once_than_asked_and_all_are_answered_in_order(target: TinyTarget) -> None:
    bench = target.bench(target.config(enable_prefix_caching=False), FixedK(0))
    prompts = [[index, 20 + index, 40] for index in range(7)]
    sampling = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    trace = run_together(bench.engine, prompts, sampling, 3)
    assert max(sum(len(batch.sequences) for batch in plan.batches) for plan, _ in bench.runner.steps) == 3
    alone = [run_together(bench.engine, [prompt], sampling, 1).answers[0].token_ids for prompt in prompts]
    assert [answer.token_ids for answer in trace.answers] == alone
    assert list(trace.submitted) == sorted(trace.submitted)
    assert trace.submitted[2] < trace.submitted[3]
    # 3 run from their first token on for 5 steps; then the next 3; the last one runs alone and its steps are no data.
    assert [step.tokens for step in trace.steps] == [3] * 10


def test_measuring_compiles_the_largest_k_and_caches_nothing() -> None:
    speculative = SpeculativeConfig(method="eagle3", model="head", num_speculative_tokens=3)
    config = EngineConfig(model="target", speculative_config=speculative, max_num_seqs=2, num_blocks=500)
    adapted = engine_for_measuring(config, 6, 16)
    assert adapted.speculative_config is not None
    assert adapted.speculative_config.num_speculative_tokens == 6
    assert (adapted.max_num_seqs, adapted.num_blocks, adapted.enable_prefix_caching) == (16, None, False)
    assert engine_for_measuring(config, 0).speculative_config == speculative


def test_drafts_need_a_drafter() -> None:
    with pytest.raises(ConfigError, match="k: got 2, but the model has no speculative_config; allowed: 0"):
        engine_for_measuring(EngineConfig(model="target"), 2)
