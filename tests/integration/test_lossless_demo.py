"""The demo itself, without Ray: on real weights, speculation changes speed and no token."""

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from benchmarks.engine_client import engine_for_measuring
from benchmarks.workloads import OWN_PROMPTS, read_prompts
from replicas.engine import Engine, build_engine
from replicas.request import GenerationRequest
from serve_app.checkpoint_paths import with_local_checkpoints
from serve_app.serve_config import load_own_model
from tests.integration.serve_process import CONFIG
from tests.reference.decoding import full_logits
from tests.reference.hand_built_engine import Answer, generate, greedy_request
from tests.reference.k_policies import FixedK

PROMPTS = read_prompts(OWN_PROMPTS)[-20:]
TOKENS = 24
NEAR_TIE = 0.01
"""Logits. The order of additions moves them by up to 0.0005; between two random tokens there are several whole ones."""


class Demo:
    """The demo's engine, and its answers to PROMPTS at K=0."""

    def __init__(self, dtype: str) -> None:
        served = load_own_model(CONFIG).engine_config
        config = engine_for_measuring(served, 8).model_copy(update={"dtype": dtype, "max_model_len": 256})
        self.policy = FixedK(0)
        self.engine: Engine = build_engine(with_local_checkpoints(config), self.policy)
        assert self.engine.codec is not None
        self.prompts = [tuple(self.engine.codec.encode_chat(prompt.messages)) for prompt in PROMPTS]
        self.plain = self.answers(0)

    def answers(self, k: int, batch: int = 8, count: int = len(PROMPTS)) -> list[Answer]:
        """Answers to the first `count` prompts, `batch` at a time, drafting `k` tokens."""
        self.policy.k = k
        found: dict[str, Answer] = {}
        for first in range(0, count, batch):
            rows = range(first, min(first + batch, count))
            found |= generate(self.engine, [self._request(row) for row in rows])
        return [found[str(row)] for row in range(count)]

    def _request(self, row: int) -> GenerationRequest:
        return greedy_request(str(row), self.prompts[row], TOKENS, ignore_eos=False)


@pytest.fixture(scope="module")
def exact() -> Demo:
    return Demo("float32")


@pytest.fixture(scope="module")
def packed() -> Demo:
    return Demo("float16")


@pytest.mark.parametrize("k", range(1, 9))
def test_in_float32_every_k_gives_the_tokens_of_plain_decoding(k: int, exact: Demo) -> None:
    answers = exact.answers(k)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in exact.plain]
    assert [answer.text for answer in answers] == [answer.text for answer in exact.plain]
    assert sum(answer.last.acceptance.accepted for answer in answers) > 0


@pytest.mark.parametrize("batch", [1, 3])
def test_in_float32_a_batch_gives_the_tokens_of_each_alone(batch: int, exact: Demo) -> None:
    answers = exact.answers(3, batch, count=8)
    assert len({len(prompt) for prompt in exact.prompts[:8]}) > 4
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in exact.plain[:8]]


@pytest.mark.parametrize("k", range(1, 9))
def test_in_float16_a_difference_is_a_near_tie(k: int, packed: Demo, demo_model_folder: Path) -> None:
    for row, (plain, answer) in enumerate(zip(packed.plain, packed.answers(k), strict=True)):
        if plain.token_ids == answer.token_ids:
            continue
        pairs = zip(plain.token_ids, answer.token_ids, strict=False)
        at = next(index for index, (one, other) in enumerate(pairs) if one != other)
        reference = LlamaForCausalLM.from_pretrained(demo_model_folder).float().eval()
        logits = full_logits(reference, [*packed.prompts[row], *plain.token_ids[:at]])[-1]
        gap = float(logits[plain.token_ids[at]] - logits[answer.token_ids[at]])
        print(f"K={k}, prompt {row}, token {at}: logit gap {gap:.6f}")
        assert abs(gap) < NEAR_TIE


def test_plain_decoding_gives_the_tokens_of_transformers(exact: Demo, demo_model_folder: Path) -> None:
    reference = LlamaForCausalLM.from_pretrained(demo_model_folder).float().eval()
    for prompt, answer in zip(exact.prompts[:3], exact.plain[:3], strict=True):
        logits = full_logits(reference, [*prompt, *answer.token_ids])
        wanted = logits[len(prompt) - 1 : len(prompt) - 1 + len(answer.token_ids)].argmax(-1).tolist()
        assert answer.token_ids == wanted
