"""Driving an engine directly, without HTTP or threads, one answer at a time."""

import time
from dataclasses import dataclass, replace

from benchmarks.timing import Answer
from benchmarks.workloads import Prompt
from replicas.engine import Engine
from replicas.request import Acceptance, GenerationRequest, SamplingParams


@dataclass(slots=True)
class ChosenK:
    """A K policy that the benchmark sets between answers."""

    k: int = 0

    def num_speculative_tokens(self, batch_size: int) -> int:
        """See KPolicy."""
        return self.k


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """One timed answer with what was said and how speculation went."""

    answer: Answer
    token_ids: tuple[int, ...]
    acceptance: Acceptance


def run_alone(engine: Engine, prompt: Prompt, sampling: SamplingParams) -> EngineAnswer:
    """Answer `prompt` with nothing else running."""
    if engine.codec is None:
        raise ValueError("the engine has no tokenizer")
    token_ids = tuple(engine.codec.encode_chat(prompt.messages))
    begin = time.perf_counter()
    engine.add_request(GenerationRequest("benchmark", token_ids, replace(sampling)))
    first, acceptance, generated = 0.0, Acceptance(), list[int]()
    while engine.has_work:
        for output in engine.step():
            first = first or time.perf_counter() - begin
            generated += output.token_ids
            acceptance = output.acceptance
    answer = Answer(first, time.perf_counter() - begin, len(generated))
    return EngineAnswer(answer, tuple(generated), acceptance)
