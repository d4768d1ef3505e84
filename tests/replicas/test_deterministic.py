"""The deterministic mode: tokens and logits are the same bits, whatever the batch, the chunks, the cache and K."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from replicas.devices.cpu import CpuBackend, LinearDtype
from replicas.devices.device_backend import Linear
from replicas.scheduling.k_policy import KPolicy
from tests.reference.emitted_logits import EmittedLogits
from tests.reference.hand_built_engine import Answer, TinyTarget, generate, greedy_request
from tests.reference.k_policies import FixedK, RandomK
from tests.reference.scripted_drafter import ScriptedDrafter, continuation
from tests.reference.tiny_checkpoints import VOCAB, write_target

TOKENS = 10
LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 21, 30, 34, 39, 47, 60, 61, 62)
PROMPTS = tuple(tuple(random.Random(length).randrange(VOCAB) for _ in range(length)) for length in LENGTHS)
MODELS: dict[str, tuple[LinearDtype, dict[str, Any]]] = {
    "packed, groups of 2": ("float16", {}),
    "fp32": ("float32", {"attention_bias": True}),
    "packed, one kv head, biases, odd sizes": (
        "float16",
        {
            "num_key_value_heads": 1,
            "num_attention_heads": 3,
            "head_dim": 22,
            "hidden_size": 66,
            "intermediate_size": 101,
        }
        | {"attention_bias": True, "mlp_bias": True},
    ),
    "packed, no groups, head norms": ("float16", {"model_type": "qwen3", "num_key_value_heads": 4, "head_dim": 32}),
}


class Subject:
    """A deterministic target, and what it says to each of PROMPTS alone, without drafts."""

    def __init__(self, folder: Path, dtype: LinearDtype) -> None:
        self.dtype = dtype
        self.target = TinyTarget(folder, backend=CpuBackend(dtype, num_threads=1, deterministic=True))
        engine = self.target.bench(self._config(enable_prefix_caching=False), FixedK(0)).engine
        self.logits = EmittedLogits(engine)
        self.answers: dict[str, Answer] = {}
        for index in range(len(PROMPTS)):
            self.answers |= generate(engine, [self.request(index)])

    def _config(self, **changes: object) -> Any:
        return self.target.config(**{"max_num_seqs": 16, **changes})

    @staticmethod
    def request(index: int) -> Any:
        return greedy_request(str(index), PROMPTS[index], TOKENS)

    def _drafter(self, hit_rate: float) -> ScriptedDrafter:
        known = [(*prompt, *self.answers[str(index)].token_ids) for index, prompt in enumerate(PROMPTS)]
        return ScriptedDrafter(continuation(known, VOCAB, hit_rate))

    def check(
        self,
        policy: KPolicy,
        hit_rate: float | None = None,
        which: range = range(len(PROMPTS)),
        rounds: int = 1,
        threads: int = 1,
        **changes: object,
    ) -> list[Answer]:
        """The prompts of `which` at once, `rounds` times: nothing may differ from what was said to each alone."""
        drafter = None if hit_rate is None else self._drafter(hit_rate)
        engine = self.target.bench(self._config(**changes), policy, drafter).engine
        torch.set_num_threads(threads)
        logits, answers = EmittedLogits(engine), dict[str, Answer]()
        for _ in range(rounds):
            logits.of.clear()
            answers = generate(engine, [self.request(index) for index in which])
            assert {key: answer.token_ids for key, answer in answers.items()} == {
                key: self.answers[key].token_ids for key in map(str, which)
            }
            assert logits.differ_from(self.logits, answers) == []
        return list(answers.values())


@pytest.fixture(scope="module", params=MODELS.values(), ids=list(MODELS))
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    dtype, changes = request.param
    folder = tmp_path_factory.mktemp("deterministic")
    write_target(folder, **changes)
    return Subject(folder, dtype)


@pytest.mark.parametrize("size", [2, 5, 16])
def test_in_a_batch(size: int, subject: Subject) -> None:
    subject.check(FixedK(0), max_num_seqs=size, enable_prefix_caching=False)


@pytest.mark.parametrize("k", range(1, 9))
def test_with_drafts_of_which_some_are_accepted(k: int, subject: Subject) -> None:
    answers = subject.check(FixedK(k), 0.7, range(1, len(PROMPTS), 4))
    acceptance = [answer.last.acceptance for answer in answers]
    assert 0 < sum(a.accepted for a in acceptance) < sum(a.drafted for a in acceptance)


@pytest.mark.parametrize("chunk", [16, 17, 40])
def test_in_chunks_with_k_changing_each_step(chunk: int, subject: Subject) -> None:
    subject.check(RandomK(chunk, 8), 0.8, max_num_batched_tokens=chunk)


def test_with_a_warm_prefix_cache(subject: Subject) -> None:
    answers = subject.check(FixedK(2), 0.8, rounds=2)
    assert sum(answer.last.num_cached_tokens for answer in answers) > 200


def test_packed_weights_with_two_threads(subject: Subject) -> None:
    # fp32 products promise the same bits for one number of threads only: the one that they were checked with.
    threads = 2 if subject.dtype == "float16" else 1
    subject.check(FixedK(3), 0.8, threads=threads)


def test_preempted_in_a_pool_of_scattered_blocks(subject: Subject) -> None:
    subject.check(FixedK(2), 0.8, range(4, len(PROMPTS)), num_blocks=60)


class FewRowsDiffer(CpuBackend):
    """Of a library that takes another way for fewer than four rows, whatever the one that is installed does."""

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        product = super()._linear(weight, bias)
        return lambda rows: product(rows) * (1 if len(rows) >= 4 else 1 + 1e-6)


def test_without_the_mode_a_batch_changes_bits(tmp_path: Path) -> None:
    # Otherwise all of the above would hold of any engine.
    write_target(tmp_path)
    differences: dict[bool, int] = {}
    for deterministic in (False, True):
        target = TinyTarget(tmp_path, backend=FewRowsDiffer("float32", 1, deterministic=deterministic))
        seen: list[EmittedLogits] = []
        for size in (1, 4):
            engine = target.bench(target.config(max_num_seqs=size, enable_prefix_caching=False), FixedK(0)).engine
            seen.append(EmittedLogits(engine))
            generate(engine, [Subject.request(index) for index in range(len(PROMPTS))])
        differences[deterministic] = len(seen[0].differ_from(seen[1], [request for request, _ in seen[1].of]))
    assert differences[False] > 0
    assert differences[True] == 0
