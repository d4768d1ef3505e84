"""A runner without torch whose KV caches hold plain token ids: a block used wrongly changes the tokens, or is noticed.

The target's KV at a position is the token there; the drafter's is the token after it, as with EAGLE3.
"""

import random
import zlib
from collections.abc import Sequence as Tokens

from replicas.request import GenerationRequest, SamplingParams
from replicas.scheduling.sequence import Sequence
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, SequenceResult, StepPlan, StepResult, TokenChoice

VOCAB = 251


def next_token(context: Tokens[int]) -> int:
    """What the symbolic target says after `context`."""
    return zlib.crc32(bytes(context)) % VOCAB


def expected_output(
    prompt: Tokens[int], max_tokens: int | None, max_model_len: int, stop: frozenset[int]
) -> tuple[list[int], str]:
    """Output tokens and finish reason of one sequence on its own."""
    context = list(prompt)
    while True:
        context.append(next_token(context))
        if context[-1] in stop:
            return context[len(prompt) :], "stop"
        if len(context) - len(prompt) == max_tokens or len(context) == max_model_len:
            return context[len(prompt) :], "length"


def sequence(request_id: str, prompt: Tokens[int], max_model_len: int, **sampling: object) -> Sequence:
    """A greedy sequence as the engine would queue it, without text."""
    params = SamplingParams(temperature=0.0, **sampling)  # pyright: ignore[reportArgumentType]
    request = GenerationRequest(request_id, tuple(prompt), params)
    choice = TokenChoice(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    return Sequence(request, choice, None, frozenset(params.stop_token_ids), max_model_len, list(prompt))


class SymbolicRunner:
    """Executes plans as ModelRunner does, and checks each against what a device program can do."""

    def __init__(self, num_blocks: int, block_size: int, hit_rate: float = 1.0, seed: int = 0) -> None:
        self._kv = [-1] * (num_blocks * block_size)
        self._draft_kv = [-1] * (num_blocks * block_size)
        self._block_size = block_size
        self._hit_rate = hit_rate
        self._random = random.Random(seed)
        self.plans: list[StepPlan] = []
        self.texts: dict[str, list[int]] = {}
        """Prompt and expected output by request id, where a test knows them."""
        self.num_shared = 0
        """Blocks that were in two plans of a step or more, summed over the steps."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run every batch."""
        self.plans.append(plan)
        parts = [part for batch in plan.batches for part in batch.sequences]
        assert len({part.request_id for part in parts}) == len(parts), "one sequence runs twice in a step"
        self._check_blocks(parts)
        assert sum(not batch.is_prefill for batch in plan.batches) <= 1
        return StepResult(
            {part.request_id: self._run(batch, part) for batch in plan.batches for part in batch.sequences}
        )

    def _check_blocks(self, parts: list[SequencePlan]) -> None:
        """A block in two sequences is full in both, at the same place, with the same tokens; neither writes to it."""
        readers: dict[int, list[tuple[int, SequencePlan]]] = {}
        for part in parts:
            assert len(set(part.block_table)) == len(part.block_table), "a sequence has a block twice"
            for index, block in enumerate(part.block_table):
                assert block != 0, "the null block is nobody's"
                readers.setdefault(block, []).append((index, part))
        for block, sharing in readers.items():
            if len(sharing) > 1:
                assert len({index for index, _ in sharing}) == 1, f"block {block} is shared at two places"
                for index, part in sharing:
                    assert (index + 1) * self._block_size <= part.start, f"{part.request_id} writes to shared {block}"
                    known = self.texts.get(part.request_id)
                    if known is not None:
                        slots = slice(block * self._block_size, (block + 1) * self._block_size)
                        start = index * self._block_size
                        assert self._kv[slots] == known[start : start + self._block_size]
                        assert self._draft_kv[slots] == known[start + 1 : start + 1 + self._block_size]
        self.num_shared += sum(len(sharing) > 1 for sharing in readers.values())

    def _run(self, batch: BatchPlan, part: SequencePlan) -> SequenceResult:
        size = self._block_size
        for source, target in batch.copied_blocks:
            assert target in part.block_table
            assert source not in part.block_table
            for kv in (self._kv, self._draft_kv):
                kv[target * size : (target + 1) * size] = kv[source * size : (source + 1) * size]
        assert part.num_propose <= batch.num_speculative_tokens
        if batch.is_prefill:
            assert len(batch.sequences) == 1
            assert part.num_drafts == 0
        else:
            assert len(part.token_ids) == 1 + part.num_drafts <= 1 + batch.num_speculative_tokens
            assert part.next_prompt_token is None
        for position, token in enumerate(part.token_ids, part.start):
            self._kv[self._slot(part, position)] = token
        if part.next_prompt_token is not None:
            self._refresh_drafter(part, [*part.token_ids[1:], part.next_prompt_token], 0)
            return SequenceResult((), ())
        first = part.start + len(part.token_ids) - part.num_drafts
        emitted = [self._choice_after(part, first)]
        for index, draft in enumerate(part.token_ids[len(part.token_ids) - part.num_drafts :]):
            if draft != emitted[-1]:
                break
            emitted.append(self._choice_after(part, first + index + 1))
        context = [self._kv[self._slot(part, position)] for position in range(first)] + emitted
        prompt_tail = part.token_ids[1 : len(part.token_ids) - part.num_drafts]
        self._refresh_drafter(part, [*prompt_tail, *emitted], batch.num_speculative_tokens)
        draft_context = [self._draft_kv[self._slot(part, position)] for position in range(len(context) - 1)]
        assert draft_context == context[1:], "the drafter's KV is not in step"
        return SequenceResult(tuple(emitted), tuple(self._drafts(context, batch.num_speculative_tokens)))

    def _refresh_drafter(self, part: SequencePlan, next_tokens: list[int], k: int) -> None:
        """Its KV of the rows that are final, then what K drafts leave behind them."""
        for position, token in enumerate(next_tokens, part.start):
            self._draft_kv[self._slot(part, position)] = token
        end = part.start + len(next_tokens)
        for position in range(end, min(end + k - 1, len(part.block_table) * self._block_size)):
            self._draft_kv[self._slot(part, position)] = -2

    def _choice_after(self, part: SequencePlan, length: int) -> int:
        return next_token([self._kv[self._slot(part, position)] for position in range(length)])

    def _drafts(self, context: list[int], count: int) -> list[int]:
        drafts: list[int] = []
        for _ in range(count):
            right = next_token(context + drafts)
            drafts.append(right if self._random.random() < self._hit_rate else (right + 1) % VOCAB)
        return drafts

    def _slot(self, part: SequencePlan, position: int) -> int:
        return part.block_table[position // self._block_size] * self._block_size + position % self._block_size
