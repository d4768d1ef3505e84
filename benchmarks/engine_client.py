"""Driving an engine directly, without HTTP or threads: so many answers at once, the next as soon as one ends."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from benchmarks.metrics import Answer, AnswerTrace, Chunk
from benchmarks.timed_drafter import DraftClock
from benchmarks.workloads import Prompt
from replicas.config import EngineBase, EngineConfig
from replicas.engine import Engine
from replicas.errors import ConfigError
from replicas.request import Acceptance, FinishReason, GenerationRequest, RequestOutput, SamplingParams
from replicas.scheduling.k_policy import DraftFeedback, KPolicy

Config = TypeVar("Config", bound=EngineBase)

MICROSECONDS = 6
"""Digits of the seconds that are kept."""


@dataclass(slots=True)
class ChosenPolicy:
    """A K policy in whose place the benchmark puts another between answers."""

    current: KPolicy

    def num_speculative_tokens(self, batch_size: int) -> int:
        """See KPolicy."""
        return self.current.num_speculative_tokens(batch_size)

    def observe(self, feedback: DraftFeedback) -> None:
        """See KPolicy."""
        self.current.observe(feedback)


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """One timed answer with what was said and how speculation went."""

    trace: AnswerTrace
    token_ids: tuple[int, ...]
    acceptance: Acceptance
    num_prompt_tokens: int
    finish_reason: FinishReason

    @property
    def answer(self) -> Answer:
        """The figures of the whole."""
        return self.trace.answer


class StepTime(NamedTuple):
    """A step that decoded as many sequences as run at once, and prefilled nothing."""

    seconds: float
    draft_seconds: float
    tokens: int
    """That it added, over all sequences."""


@dataclass(frozen=True, slots=True)
class LoopTrace:
    """What running some prompts, so many at once, looked like."""

    seconds: float
    answers: tuple[EngineAnswer, ...]
    """In the order of the prompts."""
    submitted: tuple[float, ...]
    """Seconds from the beginning until each was submitted."""
    steps: tuple[StepTime, ...]


@dataclass(slots=True)
class OpenAnswer:
    """An answer that is not complete."""

    index: int
    submitted: float
    chunks: list[Chunk] = field(default_factory=list[Chunk])
    token_ids: list[int] = field(default_factory=list[int])

    def hear(self, output: RequestOutput, now: float) -> None:
        """One more output."""
        self.token_ids += output.token_ids
        seconds = round(now - self.submitted, MICROSECONDS)
        self.chunks.append(Chunk(seconds, len(output.token_ids), bool(output.text)))


def run_together(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams,
    concurrency: int,
    draft_clock: DraftClock | None = None,
) -> LoopTrace:
    """Answer all `prompts` (token ids), `concurrency` at a time: a closed loop, with nothing else running."""
    draft_clock = draft_clock or DraftClock()
    waiting = deque(enumerate(prompts))
    running: dict[str, OpenAnswer] = {}
    answers: dict[int, EngineAnswer] = {}
    submitted: dict[int, float] = {}
    steps: list[StepTime] = []
    begin = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < concurrency:
            index, token_ids = waiting.popleft()
            moment = time.perf_counter()
            running[str(index)] = OpenAnswer(index, moment)
            submitted[index] = round(moment - begin, MICROSECONDS)
            engine.add_request(GenerationRequest(str(index), tuple(token_ids), sampling))
        only_decodes = len(running) == concurrency and all(one.chunks for one in running.values())
        drafting, before = draft_clock.seconds, time.perf_counter()
        outputs = engine.step()
        now = time.perf_counter()
        if only_decodes:
            tokens = sum(len(output.token_ids) for output in outputs)
            drafting = draft_clock.seconds - drafting
            steps.append(StepTime(round(now - before, MICROSECONDS), round(drafting, MICROSECONDS), tokens))
        for output in outputs:
            one = running[output.request_id]
            one.hear(output, now)
            if output.finish_reason is not None:
                del running[output.request_id]
                answers[one.index] = closed_answer(one, output, output.finish_reason)
    order = sorted(answers)
    return LoopTrace(
        round(time.perf_counter() - begin, MICROSECONDS),
        tuple(answers[index] for index in order),
        tuple(submitted[index] for index in order),
        tuple(steps),
    )


def closed_answer(one: OpenAnswer, last: RequestOutput, reason: FinishReason) -> EngineAnswer:
    """`one`, which ended with `last`."""
    trace = AnswerTrace(tuple(one.chunks))
    return EngineAnswer(trace, tuple(one.token_ids), last.acceptance, last.num_prompt_tokens, reason)


def run_alone(engine: Engine, prompt: Prompt, sampling: SamplingParams) -> EngineAnswer:
    """Answer `prompt` with nothing else running."""
    if engine.codec is None:
        raise ValueError("the engine has no tokenizer")
    return run_together(engine, [engine.codec.encode_chat(prompt.messages)], sampling, 1).answers[0]


def engine_for_measuring(config: Config, largest_k: int, largest_batch: int | None = None) -> Config:
    """`config` for up to `largest_k` draft tokens and `largest_batch` sequences, with nothing cached between answers.

    Every prompt runs once for each K: a prefix cache would spare all but the first their prefill.
    Raises ConfigError if there is no drafter for a K above 0.
    """
    changes: dict[str, object] = {"enable_prefix_caching": False}
    if largest_batch is not None:
        changes["max_num_seqs"] = largest_batch
        if isinstance(config, EngineConfig):
            changes["num_blocks"] = None
    speculative = config.speculative_config
    if largest_k > 0 and speculative is None:
        raise ConfigError(f"k: got {largest_k}, but the model has no speculative_config; allowed: 0")
    if largest_k > 0 and speculative is not None:
        largest = {"num_speculative_tokens": largest_k, "allowed_num_speculative_tokens": None}
        changes["speculative_config"] = speculative.model_copy(update=largest)
    return config.model_copy(update=changes)
