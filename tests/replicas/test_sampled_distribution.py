"""With speculation, sampled texts are distributed as the target alone would sample them."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from replicas.request import GenerationRequest, SamplingParams
from tests.reference.hand_built_engine import TinyTarget, generate
from tests.reference.k_policies import FixedK
from tests.reference.scripted_drafter import ScriptedDrafter
from tests.reference.tiny_checkpoints import write_target

VOCAB = 12
RUNS = 20_000
AT_ONCE = 250
PROMPT = (3, 7, 1)
TEMPERATURE = 0.8


Pick = Callable[[NDArray[np.float64]], np.intp]


class Target:
    """A target of 12 tokens, and its exact probabilities after every text of up to two tokens."""

    def __init__(self, folder: Path) -> None:
        sizes: dict[str, Any] = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "initializer_range": 0.35,
        }
        heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
        reference = write_target(folder, vocab_size=VOCAB, eos_token_id=None, **sizes, **heads)
        self.tiny = TinyTarget(folder, max_model_len=16)
        self.after: dict[tuple[int, ...], NDArray[np.float64]] = {}
        for length in range(3):
            texts = list(product(range(VOCAB), repeat=length))
            with torch.no_grad():
                logits = reference(torch.tensor([PROMPT + text for text in texts])).logits[:, -1].double()
            self.after |= dict(zip(texts, (logits / TEMPERATURE).softmax(-1).numpy(), strict=True))

    def best(self, tokens: tuple[int, ...], count: int) -> list[int]:
        """A good drafter: the most likely continuation of `tokens` (less the prompt's first)."""
        return self._drafts(tokens, count, np.argmax)

    def worst(self, tokens: tuple[int, ...], count: int) -> list[int]:
        """A bad drafter: the least likely one."""
        return self._drafts(tokens, count, np.argmin)

    def _drafts(self, tokens: tuple[int, ...], count: int, pick: Pick) -> list[int]:
        text = tokens[len(PROMPT) - 1 :]
        for _ in range(count):
            # Of drafts beyond the third token nothing is known, and none is kept.
            text = (*text, int(pick(self.after[text])) if len(text) < 3 else 0)
        return list(text[len(tokens) - len(PROMPT) + 1 :])


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target(tmp_path_factory.mktemp("twelve_tokens"))


@pytest.mark.parametrize(("drafter", "accepts"), [("best", (0.25, 0.9)), ("worst", (0.0, 0.05))])
def test_three_sampled_tokens_follow_the_target(drafter: str, accepts: tuple[float, float], target: Target) -> None:
    config = target.tiny.config(max_model_len=16, max_num_seqs=AT_ONCE, max_num_batched_tokens=AT_ONCE * len(PROMPT))
    scripted = ScriptedDrafter(getattr(target, drafter), tapped_layers=(0,))
    engine = target.tiny.bench(config, FixedK(2), scripted, ks=range(3)).engine
    counts = np.zeros((VOCAB,) * 3)
    drafted = accepted = 0
    for first in range(0, RUNS, AT_ONCE):
        seeds = range(first, first + AT_ONCE)
        sampling = [SamplingParams(temperature=TEMPERATURE, max_tokens=3, seed=seed) for seed in seeds]
        answers = generate(engine, [GenerationRequest(str(s.seed), PROMPT, s) for s in sampling])
        for answer in answers.values():
            counts[tuple(answer.token_ids)] += 1
            drafted += answer.last.acceptance.drafted
            accepted += answer.last.acceptance.accepted
    assert counts.sum() == RUNS
    assert accepts[0] <= accepted / drafted <= accepts[1]
    third = np.array([[target.after[first, second] for second in range(VOCAB)] for first in range(VOCAB)])
    second = np.array([target.after[first,] for first in range(VOCAB)])
    joint = target.after[()][:, None, None] * second[:, :, None] * third
    assert chi_square(counts, joint * RUNS) > 0.001
    for axis in range(3):
        others = tuple(set(range(3)) - {axis})
        assert chi_square(counts.sum(others), joint.sum(others) * RUNS) > 0.001


def chi_square(counts: NDArray[np.float64], expected: NDArray[np.float64]) -> float:
    """p-value; cells where fewer than 5 are expected count as one."""
    common = expected >= 5
    found = [*counts[common], counts[~common].sum()]
    wanted = [*expected[common], expected[~common].sum()]
    pairs = [(count, want) for count, want in zip(found, wanted, strict=True) if want > 0]
    assert len(pairs) > 5
    return float(stats.chisquare([count for count, _ in pairs], [want for _, want in pairs]).pvalue)
