"""The demo with `deterministic: true`, without Ray: on real packed weights, tokens and logits are the same bits."""

import pytest
import torch

from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.engine import build_engine
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.serve_config import load_own_model
from tests.integration.serve_process import CONFIG
from tests.reference.emitted_logits import EmittedLogits
from tests.reference.hand_built_engine import Answer, generate, greedy_request
from tests.reference.k_policies import FixedK

PROMPTS = read_prompts(OWN_PROMPTS)[-4:]
TOKENS = 12


class Demo:
    """The demo's engine in the deterministic mode."""

    def __init__(self, **changes: object) -> None:
        served = load_own_model(CONFIG).engine_config
        changes = {"deterministic": True, "max_model_len": 256} | changes
        self.policy = FixedK(0)
        self.engine = build_engine(with_local_checkpoints(served.model_copy(update=changes)), self.policy)
        assert self.engine.codec is not None
        self.requests = [
            greedy_request(str(index), self.engine.codec.encode_chat(prompt.messages), TOKENS)
            for index, prompt in enumerate(PROMPTS)
        ]
        self.logits = EmittedLogits(self.engine)

    def run(self, k: int, batch: int) -> dict[str, Answer]:
        self.policy.k = k
        answers: dict[str, Answer] = {}
        for first in range(0, len(self.requests), batch):
            answers |= generate(self.engine, self.requests[first : first + batch])
        return answers


@pytest.fixture(scope="module")
def alone() -> tuple[Demo, dict[str, Answer]]:
    """Each prompt alone, without drafts, cache or threads, in chunks of 16 tokens."""
    demo = Demo(num_threads=1, enable_prefix_caching=False, max_num_batched_tokens=16)
    return demo, demo.run(k=0, batch=1)


def test_batch_drafts_chunks_cache_and_threads_change_no_bit(alone: tuple[Demo, dict[str, Answer]]) -> None:
    first, plain = alone
    demo = Demo(num_threads=2)
    cached = 0
    for k, batch in ((3, 4), (0, 4), (2, 3)):
        demo.logits.of.clear()
        answers = demo.run(k, batch)
        assert {key: answer.token_ids for key, answer in answers.items()} == {
            key: answer.token_ids for key, answer in plain.items()
        }
        assert demo.logits.differ_from(first.logits, plain) == []
        cached += sum(answer.last.num_cached_tokens for answer in answers.values())
        assert (sum(answer.last.acceptance.accepted for answer in answers.values()) > 0) == (k > 0)
    assert cached > 0
    torch.set_num_threads(1)
