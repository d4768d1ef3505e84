"""Ranks as processes: their tokens, their deaths, their refusals."""

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from pydantic import ValidationError

from replicas.async_engine import AsyncEngine
from replicas.config import EngineConfig, SpeculativeConfig
from replicas.devices.collectives import SingleRank
from replicas.drafters.drafter import Drafter
from replicas.drafters.registry import DRAFTERS, DrafterContext
from replicas.engine import Engine, build_engine
from replicas.engine_runner import Drafters, build_backend
from replicas.errors import ConfigError, EngineDeadError
from replicas.request import GenerationRequest
from replicas.text_codec import TextCodec
from tests.reference.hand_built_engine import Answer, generate, greedy_request
from tests.reference.k_policies import FixedK
from tests.replicas.tensor_parallel import drafters_that_fail as failing

PROMPTS = {str(n): tuple(random.Random(n).choices(range(1, 70), k=n)) for n in (4, 9, 20)}
NGRAM = SpeculativeConfig(method="ngram")
NOTICED_SECONDS = 5.0
RANK_TIMEOUT_S = 2.0
STOPPED = r"rank 1 of 2 \(process \d+, stopped\) has not ended, but has given no sign of life for rank_timeout_s, 2 s"


def config(folder: Path, ranks: int, speculative: SpeculativeConfig | None = NGRAM, **changes: object) -> EngineConfig:
    """Small, and float32."""
    fields: dict[str, object] = {
        "model": str(folder),
        "dtype": "float32",
        "num_threads": 1,
        "tensor_parallel_size": ranks,
        "max_model_len": 64,
        "max_num_seqs": 4,
        "block_size": 4,
        "max_num_batched_tokens": 32,
        "speculative_config": speculative,
    }
    return EngineConfig.model_validate(fields | changes)


@contextmanager
def ranks(config: EngineConfig, policy: FixedK, drafters: Drafters = DRAFTERS) -> Generator[Engine]:
    engine = build_engine(config, policy, drafters)
    try:
        yield engine
    finally:
        engine.close()
        assert rank_processes() == []


def rank_processes() -> list[BaseProcess]:
    return [process for process in active_children() if process.name.startswith("rank-")]


def tokens_of(answers: dict[str, Answer]) -> dict[str, list[int]]:
    return {key: answer.token_ids for key, answer in answers.items()}


def requests() -> list[GenerationRequest]:
    return [greedy_request(key, prompt, 16) for key, prompt in PROMPTS.items()]


def is_dead(engine: Engine) -> bool:
    try:
        engine.check_health()
    except EngineDeadError:
        return True
    return False


def until_dead(engine: Engine) -> None:
    """Fails after NOTICED_SECONDS."""
    deadline = time.monotonic() + NOTICED_SECONDS
    while not is_dead(engine):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_two_ranks_give_the_tokens_of_one_until_an_idle_one_is_killed(
    tiny_folder: Path, tiny_head: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One start of processes for all of it: warm-up, speculation, plain decoding, cached prefixes, death."""
    with ranks(config(tiny_folder, 1, None), FixedK(0)) as engine:
        expected = tokens_of(generate(engine, requests()))
    policy = FixedK(3)
    with ranks(config(tiny_folder, 2, SpeculativeConfig(method="eagle3", model=str(tiny_head))), policy) as engine:
        engine.warm_up()
        found = generate(engine, requests())
        assert tokens_of(found) == expected
        assert sum(answer.last.acceptance.drafted for answer in found.values()) > 20
        policy.k = 0
        plain = generate(engine, requests())
        assert tokens_of(plain) == expected
        assert sum(answer.last.acceptance.drafted for answer in plain.values()) == 0
        assert engine.stats().prefix_cache_hits > 0
        engine.check_health()

        (process,) = rank_processes()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        until_dead(engine)
        sentence = f"rank 1 of 2 (process {process.pid}) was killed by SIGKILL"
        with pytest.raises(EngineDeadError, match=re.escape(sentence)):
            engine.check_health()
        engine.add_request(greedy_request("late", (1, 2), 4))
        with pytest.raises(EngineDeadError, match=re.escape(sentence)):
            engine.step()
    assert f"{sentence}; the replica runs no further step" in caplog.messages


@pytest.mark.parametrize(
    ("build", "sentence", "logged"),
    [
        (failing.build_raising, r"rank 1 of 2: ArithmeticError\('this core has lost a bit'\)", "in propose"),
        (failing.build_dying, r"rank 1 of 2 \(process \d+\) was killed by SIGKILL", "the replica runs no further step"),
        (failing.build_stopping, STOPPED, "the replica runs no further step"),
    ],
)
def test_a_rank_that_fails_in_a_step_ends_the_replica(
    build: Callable[[DrafterContext], Drafter],
    sentence: str,
    logged: str,
    tiny_folder: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request that runs then gets the cause, and so does whoever asks for health: nobody hangs."""
    settings = config(tiny_folder, 2, rank_timeout_s=RANK_TIMEOUT_S)
    engine = AsyncEngine(lambda: build_engine(settings, FixedK(3), {"ngram": build}))

    async def serve(prompt: tuple[int, ...]) -> list[int]:
        return [t async for out in engine.generate(greedy_request("a", prompt, 4)) for t in out.token_ids]

    try:
        assert len(asyncio.run(serve((1, 2, 3)))) == 4
        begin = time.monotonic()
        with pytest.raises(EngineDeadError, match=sentence):
            asyncio.run(serve((1, failing.FATAL_TOKEN, 3)))
        assert time.monotonic() - begin < NOTICED_SECONDS
        with pytest.raises(EngineDeadError, match=sentence):
            engine.check_health()
        assert caplog.text.count(logged) == 1
    finally:
        engine.shutdown()
    assert rank_processes() == []


def test_a_rank_that_is_stopped_while_all_wait_is_noticed(tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = config(tiny_folder, 2, rank_timeout_s=RANK_TIMEOUT_S)
    with ranks(settings, FixedK(3)) as engine:
        (process,) = rank_processes()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        until_dead(engine)
        with pytest.raises(EngineDeadError, match=STOPPED):
            engine.check_health()
        process.join(NOTICED_SECONDS)
        assert process.exitcode == -signal.SIGKILL
    assert len([message for message in caplog.messages if re.search(STOPPED, message)]) == 1


def test_a_rank_that_is_busy_for_longer_is_no_lost_one(tiny_folder: Path) -> None:
    assert failing.BUSY_SECONDS > 1.4 * RANK_TIMEOUT_S
    settings = config(tiny_folder, 2, rank_timeout_s=RANK_TIMEOUT_S)
    with ranks(settings, FixedK(3), {"ngram": failing.build_busy}) as engine:
        begin = time.monotonic()
        answers = generate(engine, [greedy_request("a", (1, failing.FATAL_TOKEN, 3), 4)])
        assert time.monotonic() - begin > failing.BUSY_SECONDS
        assert len(answers["a"].token_ids) == 4
        engine.check_health()


def test_a_step_that_is_stuck_ends_the_other_ranks_too(tiny_folder: Path) -> None:
    """A rank that lives but does not get on: signs of life do not help it."""
    settings = config(tiny_folder, 2, rank_timeout_s=60.0, step_timeout_s=1.0)
    engine = AsyncEngine(lambda: build_engine(settings, FixedK(3), {"ngram": failing.build_stopping}))

    async def ask() -> None:
        request = greedy_request("a", (1, failing.FATAL_TOKEN, 3), 4)
        async for _ in engine.generate(request):
            pass

    async def ask_and_watch() -> None:
        asked = asyncio.create_task(ask())
        while not asked.done():
            with suppress(EngineDeadError):
                engine.check_health()
            await asyncio.sleep(0.05)
        await asked

    with pytest.raises(EngineDeadError, match="step_timeout_s, 1 s"):
        asyncio.run(ask_and_watch())
    assert rank_processes() == []


def test_a_rank_that_cannot_be_built_is_refused_with_its_cause(tiny_folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"rank 1 of 2: ValueError\('no room on this core'\)"):
        build_engine(config(tiny_folder, 2), FixedK(3), {"ngram": failing.build_refusing})
    assert rank_processes() == []


@pytest.mark.ranks
def test_four_ranks_give_the_tokens_of_one(tiny_folder: Path, tiny_head: Path) -> None:
    with ranks(config(tiny_folder, 1, None), FixedK(0)) as engine:
        expected = tokens_of(generate(engine, requests()))
    policy = FixedK(3)
    with ranks(config(tiny_folder, 4, SpeculativeConfig(method="eagle3", model=str(tiny_head))), policy) as engine:
        assert tokens_of(generate(engine, requests())) == expected
        policy.k = 0
        assert tokens_of(generate(engine, requests())) == expected
        # One in the middle: the others wait for it, and not for each other.
        pid = next(process.pid for process in rank_processes() if process.name == "rank-2")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until_dead(engine)
        with pytest.raises(EngineDeadError, match=r"rank 2 of 4 \(process \d+\) was killed by SIGKILL"):
            engine.check_health()


@pytest.mark.ranks
def test_the_demo_model_on_two_ranks(demo_model_folder: Path) -> None:
    prompt = tuple(TextCodec(demo_model_folder).encode("The capital of France is"))
    answers: list[list[int]] = []
    for size in (1, 2):
        with ranks(config(demo_model_folder, size, None, max_num_seqs=1), FixedK(0)) as engine:
            answers.append(generate(engine, [greedy_request("a", prompt, 24)])["a"].token_ids)
    assert answers[0] == answers[1]


class TestSettings:
    def test_deterministic_sums_need_one_rank(self, tiny_folder: Path) -> None:
        with pytest.raises(ValidationError, match="deterministic is true, but tensor_parallel_size is 2"):
            config(tiny_folder, 2, deterministic=True)

    def test_xla_s_cpu_client_has_one_rank(self, tiny_folder: Path) -> None:
        with pytest.raises(ValidationError, match="tensor_parallel_size is 2; on device xla-cpu it must be 1"):
            config(tiny_folder, 2, device="xla-cpu", num_threads=None)

    def test_the_world_is_as_large_as_the_config_says(self, tiny_folder: Path) -> None:
        with pytest.raises(ConfigError, match="tensor_parallel_size is 2, but the model would run on 1 ranks"):
            build_backend(config(tiny_folder, 2))
        alone = config(tiny_folder, 1)
        with pytest.raises(ConfigError, match="tensor_parallel_size is 1, but the model would run on 2 ranks"):
            build_backend(alone, SingleRank(size=2))
