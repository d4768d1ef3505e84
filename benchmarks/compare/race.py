"""Every drafter at every K, and no drafter at all, on the same prompts next to each other."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from benchmarks.compare.contestants import Contestant, alone
from benchmarks.metrics import Answer
from benchmarks.timed_drafter import DraftClock, timed
from benchmarks.workloads import Prompt
from replicas.config import EngineConfig
from replicas.drafters.registry import DRAFTERS
from replicas.engine import Engine, build_engine
from replicas.request import Acceptance, GenerationRequest, SamplingParams
from serve_app.k_policy import FixedK

WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer, alone in its engine."""

    answer: Answer
    token_ids: tuple[int, ...]
    acceptance: Acceptance
    step_seconds: float
    """Of its decode steps together, drafting included."""
    draft_seconds: float
    """Of drafting in them."""


@dataclass(slots=True)
class Lap:
    """One drafter at one K (None and 0: no drafter), with its answers in the order of the prompts."""

    name: str | None
    k: int
    answers: list[TimedAnswer] = field(default_factory=list[TimedAnswer])


@dataclass(frozen=True, slots=True)
class TimedEngine:
    """An engine whose drafting runs against a clock."""

    engine: Engine
    clock: DraftClock

    @staticmethod
    def build(config: EngineConfig) -> "TimedEngine":
        """Warmed up; K is the largest that a request may ask for."""
        clock = DraftClock()
        speculative = config.speculative_config
        policy = FixedK(speculative.num_speculative_tokens if speculative else 0)
        engine = build_engine(config, policy, timed(DRAFTERS, clock))
        engine.warm_up()
        return TimedEngine(engine, clock)

    def tokens_of(self, prompt: Prompt) -> tuple[int, ...]:
        """Of `prompt` as a chat."""
        assert self.engine.codec is not None, "build_engine always gives one"
        return tuple(self.engine.codec.encode_chat(prompt.messages))

    def answer(self, prompt: tuple[int, ...], k: int, tokens: int) -> TimedAnswer:
        """The greedy answer to `prompt`, `k` draft tokens a step."""
        engine, clock = self.engine, self.clock
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, num_speculative_tokens=k)
        begin = time.perf_counter()
        engine.add_request(GenerationRequest("benchmark", prompt, sampling))
        first, step_seconds, draft_seconds = 0.0, 0.0, 0.0
        generated, acceptance = list[int](), Acceptance()
        while engine.has_work:
            drafting, before = clock.seconds, time.perf_counter()
            outputs = engine.step()
            now = time.perf_counter()
            if first:
                step_seconds += now - before
                draft_seconds += clock.seconds - drafting
            for output in outputs:
                first = first or now - begin
                generated += output.token_ids
                acceptance = output.acceptance
        answer = Answer(first, time.perf_counter() - begin, len(generated))
        return TimedAnswer(answer, tuple(generated), acceptance, step_seconds, draft_seconds)


@dataclass(frozen=True, slots=True)
class Race:
    """All answers, and the engine without a drafter, which can say more about a token."""

    plain: Lap
    laps: list[Lap]
    prompts: list[tuple[int, ...]]
    plain_engine: TimedEngine


def race(
    config: EngineConfig, drafters: Sequence[Contestant], ks: Sequence[int], prompts: Sequence[Prompt], tokens: int
) -> Race:
    """Answer every prompt in every way, in a fresh random order for each prompt.

    Raises CheckpointError or ConfigError, each in one sentence, for a drafter that cannot be had.
    """
    plain_engine = TimedEngine.build(alone(config, None))
    engines = {one.name: TimedEngine.build(alone(config, one.speculative)) for one in drafters}
    plain = Lap(None, 0)
    laps = [Lap(name, k) for name in engines for k in ks]
    encoded = [plain_engine.tokens_of(prompt) for prompt in prompts]
    for lap in (plain, *laps):
        engines.get(lap.name or "", plain_engine).answer(encoded[0], lap.k, WARM_UP_TOKENS)
    order, shuffle = [plain, *laps], random.Random(0)
    with tqdm(total=len(encoded) * len(order), unit="answer") as bar:
        for prompt in encoded:
            shuffle.shuffle(order)
            for lap in order:
                lap.answers.append(engines.get(lap.name or "", plain_engine).answer(prompt, lap.k, tokens))
                bar.update()
    return Race(plain, laps, encoded, plain_engine)
