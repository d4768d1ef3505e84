"""The real model and its trained head through XLA: a few tokens, as the CPU backend says them."""

from pathlib import Path

import pytest

from replicas.config import EngineConfig, SpeculativeConfig
from replicas.engine import Engine, build_engine
from replicas.runner.model_runner import ModelRunner
from tests.device.xla.watched_engine import Counts, watch
from tests.reference.hand_built_engine import generate, greedy_request
from tests.reference.k_policies import FixedK

HEAD = Path(__file__).parents[3] / "configs/drafters/smollm2-135m-eagle3"
TEXTS = {"capital": "The capital of France is", "count": "One, two, three, four,"}
K = 3


def engine(folder: Path, device: str) -> Engine:
    speculative = SpeculativeConfig(method="eagle3", model=str(HEAD), num_speculative_tokens=K)
    fields = {
        "model": str(folder),
        "device": device,
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 16,
        "speculative_config": speculative,
    }
    return build_engine(EngineConfig.model_validate(fields), FixedK(K))


@pytest.mark.timeout(900)
def test_the_demo_model_says_the_same_through_xla(demo_model_folder: Path) -> None:
    on_xla = engine(demo_model_folder, "xla-cpu")
    assert on_xla.codec is not None
    requests = [greedy_request(name, on_xla.codec.encode(text), 16) for name, text in TEXTS.items()]
    assert isinstance(on_xla._runner, ModelRunner)
    watched = watch(on_xla._runner)
    before = Counts.now()
    answers = generate(on_xla, requests)
    after = Counts.now()
    plain = generate(engine(demo_model_folder, "cpu"), requests)
    for name in TEXTS:
        assert answers[name].token_ids == plain[name].token_ids
    assert "Paris" in answers["capital"].text
    # Drafts were accepted: fewer steps than tokens.
    assert answers["count"].last.acceptance.accepted > 4
    assert after.compiled - before.compiled == len(set(watched.calls))
    assert after.executed - before.executed == after.read - before.read == len(watched.calls)
    assert after.fallbacks == ()
    assert watched.forbidden() == set()
    assert [len(pointers) for pointers in watched.pointers.values()] == [1, 1]
