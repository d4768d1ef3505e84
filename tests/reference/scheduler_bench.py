"""A scheduler on its own: every token depends on the KV that the plan's blocks hold."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

from replicas.kv_cache.block_allocator import BlockAllocator
from replicas.kv_cache.prefix_cache import PrefixCache
from replicas.request import RequestOutput
from replicas.scheduling.k_policy import KPolicy
from replicas.scheduling.scheduler import Scheduler, SchedulerLimits
from replicas.scheduling.step_plan import SequencePlan, StepPlan
from tests.reference.k_policies import FixedK
from tests.reference.symbolic_runner import VOCAB, SymbolicRunner, expected_output, sequence


@dataclass
class SchedulerBench:
    """A scheduler, its pool and a runner; 16 sequences of 64 tokens fit unless a test says otherwise."""

    policy: KPolicy = field(default_factory=lambda: FixedK(0))
    max_model_len: int = 64
    max_num_seqs: int = 16
    budget: int = 32
    block_size: int = 4
    max_k: int = 8
    num_blocks: int = 257
    hit_rate: float = 1.0
    seed: int = 0
    prefix_caching: bool = True
    max_draft_len: int | None = None
    attends_in_place: bool = False

    def __post_init__(self) -> None:
        self.allocator = BlockAllocator(self.num_blocks)
        limits = SchedulerLimits(
            self.max_model_len,
            self.max_num_seqs,
            self.budget,
            self.block_size,
            tuple(range(self.max_k + 1)),
            self.max_draft_len,
            self.attends_in_place,
        )
        prefix_cache = PrefixCache(self.allocator, self.block_size) if self.prefix_caching else None
        self.scheduler = Scheduler(limits, self.allocator, self.policy, prefix_cache)
        self.runner = SymbolicRunner(self.num_blocks, self.block_size, self.hit_rate, self.seed)
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.last: dict[str, RequestOutput] = {}
        self.expected: dict[str, list[int]] = {}

    def add(self, request_id: str, prompt: list[int], **sampling: object) -> None:
        self.scheduler.add(sequence(request_id, prompt, self.max_model_len, **sampling))

    def step(self) -> StepPlan:
        plan = self.scheduler.plan()
        for output in self.scheduler.apply(plan, self.runner.execute(plan)):
            self.tokens[output.request_id] += output.token_ids
            self.last[output.request_id] = output
            if output.finish_reason is not None and output.request_id in self.expected:
                assert self.tokens[output.request_id] == self.expected[output.request_id]
        return plan

    def run(self) -> None:
        steps = 0
        while self.scheduler.num_running + self.scheduler.num_waiting:
            self.step()
            steps += 1
            assert steps < 5000, "no progress"

    def expect(self, request_id: str, prompt: list[int], max_tokens: int | None = None, **sampling: object) -> None:
        """Add a request, and check its blocks in every step and its tokens when it ends."""
        self.add(request_id, prompt, max_tokens=max_tokens, **sampling)
        self.expected[request_id] = expected_output(prompt, max_tokens, self.max_model_len, frozenset())[0]
        self.runner.texts[request_id] = prompt + self.expected[request_id]

    def finish_reason(self, request_id: str) -> str | None:
        return self.last[request_id].finish_reason if request_id in self.last else None

    @property
    def owned(self) -> int:
        return self.num_blocks - 1 - self.allocator.num_free


def prompt_of(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(f"{length} {seed}")
    return [chance.randrange(VOCAB) for _ in range(length)]


def parts_of(plan: StepPlan) -> dict[str, SequencePlan]:
    return {part.request_id: part for batch in plan.batches for part in batch.sequences}


def ran(plan: StepPlan) -> dict[str, int]:
    """Tokens each request ran."""
    return {request_id: len(part.token_ids) for request_id, part in parts_of(plan).items()}
