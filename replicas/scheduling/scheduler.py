"""Continuous batching: which sequences run in a step, with which blocks and how many drafts. No torch."""

import time
from collections import deque
from dataclasses import dataclass

from replicas.kv_cache.block_allocator import BlockAllocator
from replicas.kv_cache.prefix_cache import PrefixCache
from replicas.request import RequestOutput
from replicas.scheduling.k_policy import KPolicy, allowed_k, draft_feedback
from replicas.scheduling.sequence import Sequence
from replicas.scheduling.step_plan import BatchPlan, SequencePlan, SequenceResult, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The sizes that the device programs were built for."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    speculative_tokens: tuple[int, ...]
    """Every K that a step may run, ascending; only 0 without a drafter."""
    max_draft_len: int | None = None
    """Tokens of a sequence that the drafter was made for; None: as many as the target."""
    attends_in_place: bool = False
    """True if a lone sequence in a row of blocks needs no gather (DeviceBackend)."""

    @property
    def max_num_speculative_tokens(self) -> int:
        """The largest K."""
        return self.speculative_tokens[-1]


@dataclass(frozen=True, slots=True)
class PrefixCacheStats:
    """Prompt tokens that were looked for in the prefix cache, and found."""

    queried_tokens: int = 0
    hit_tokens: int = 0


class Scheduler:
    """Waiting and running sequences, first come first served; the newest is preempted when blocks run out.

    A step decodes every running sequence and, within the token budget, prefills chunks of prompts.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        allocator: BlockAllocator,
        k_policy: KPolicy,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self._limits = limits
        self._allocator = allocator
        self._k_policy = k_policy
        self._prefix_cache = prefix_cache
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.prefix_cache_stats = PrefixCacheStats()
        self.num_preemptions = 0
        """So far."""

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that do not run yet, or no more after a preemption."""
        return len(self._waiting)

    @property
    def num_waiting_prompt_tokens(self) -> int:
        """Tokens that have to run before each sequence decodes."""
        prefilling = sum(len(s.token_ids) - s.num_computed for s in self._running if not s.is_decoding)
        return prefilling + sum(len(s.token_ids) for s in self._waiting)

    def __contains__(self, request_id: object) -> bool:
        """True while the sequence of `request_id` runs or waits."""
        return any(s.request.request_id == request_id for s in (*self._running, *self._waiting))

    def add(self, sequence: Sequence) -> None:
        """Queue `sequence`."""
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> Sequence | None:
        """Drop the sequence of `request_id` and free its blocks; None if it is not here (any more)."""
        for sequences in (self._running, self._waiting):
            for sequence in sequences:
                if sequence.request.request_id == request_id:
                    sequences.remove(sequence)
                    self._release(sequence)
                    sequence.finish_reason = "abort"
                    return sequence
        return None

    def plan(self) -> StepPlan:
        """Decide the next step. Without work it has no batches."""
        decode = self._plan_decode()
        prefills = self._plan_prefills(self._step_k(sum(s.is_decoding for s in self._running) + 1))
        return StepPlan((decode, *prefills) if decode else tuple(prefills))

    def apply(self, plan: StepPlan, result: StepResult) -> list[RequestOutput]:
        """Take over what `plan` brought about; returns the news of each sequence that has some."""
        sequences = {s.request.request_id: s for s in self._running}
        outputs: list[RequestOutput] = []
        for batch in plan.batches:
            for part in batch.sequences:
                sequence = sequences[part.request_id]
                output = self._apply_one(sequence, part, result.sequences[part.request_id], batch.is_prefill)
                if output is not None:
                    outputs.append(output)
            if not batch.is_prefill:
                self._k_policy.observe(draft_feedback(batch, result))
        self._running = [s for s in self._running if s.finish_reason is None]
        return outputs

    def _apply_one(
        self, sequence: Sequence, part: SequencePlan, result: SequenceResult, is_prefill: bool
    ) -> RequestOutput | None:
        sequence.learn_prompt_logprobs(part.start, result.prompt_logprobs)
        if part.next_prompt_token is not None:
            sequence.num_computed += len(part.token_ids)
            self._publish(sequence)
            return None
        # Of the tokens that ran, the rejected drafts left stale KV behind: it is overwritten by the next step.
        if not is_prefill and sequence.num_output_tokens > 0:
            sequence.acceptance = sequence.acceptance.after(part.num_drafts, len(result.token_ids) - 1)
        sequence.num_computed = part.start + len(part.token_ids) - part.num_drafts + len(result.token_ids) - 1
        kept = sequence.append(result.token_ids)
        sequence.drafts = result.draft_token_ids[: part.num_propose]
        self._publish(sequence)
        if sequence.finish_reason is not None:
            self._release(sequence)
            if sequence.text is not None:
                sequence.text.finish()
        return RequestOutput(
            sequence.request.request_id,
            result.token_ids[:kept],
            sequence.text.take() if sequence.text is not None else "",
            sequence.num_prompt_tokens,
            sequence.num_output_tokens,
            sequence.acceptance,
            sequence.finish_reason,
            None if result.logprobs is None else result.logprobs[:kept],
            sequence.take_prompt_logprobs(),
            num_cached_tokens=sequence.num_cached_tokens or 0,
            queue_seconds=sequence.queue_seconds,
        )

    def _plan_decode(self) -> BatchPlan | None:
        decoding = [s for s in self._running if s.is_decoding]
        step_k = self._step_k(len(decoding))
        kept: list[Sequence] = []
        for sequence in decoding:
            if sequence.finish_reason is None and sequence in self._running and self._reserve(sequence, step_k):
                kept.append(sequence)
        # Reserving for one sequence may have preempted another that was kept before it.
        kept = [s for s in kept if s in self._running]
        if not kept:
            return None
        wanted = [self._drafts_wanted(s, step_k, len(s.token_ids)) for s in kept]
        parts: list[SequencePlan] = []
        for sequence, want in zip(kept, wanted, strict=True):
            drafts = sequence.drafts[:want]
            tokens = (sequence.token_ids[-1], *drafts)
            parts.append(self._part(sequence, tokens, len(drafts), None, want))
        # One K for the whole batch; a sequence with a lower cap leaves its rows of the program empty.
        return BatchPlan(tuple(parts), max(wanted), is_prefill=False)

    def _plan_prefills(self, step_k: int) -> list[BatchPlan]:
        budget = self._limits.max_num_batched_tokens
        batches: list[BatchPlan] = []
        for sequence in self._running:
            if budget > 0 and not sequence.is_decoding:
                batches.append(self._prefill(sequence, budget, step_k))
                budget -= len(batches[-1].sequences[0].token_ids)
        while budget > 0 and self._waiting and len(self._running) < self._limits.max_num_seqs:
            sequence = self._waiting[0]
            copies = self._admit(sequence)
            if copies is None:
                break
            self._running.append(self._waiting.popleft())
            batches.append(self._prefill(sequence, budget, step_k, copies))
            budget -= len(batches[-1].sequences[0].token_ids)
        return batches

    def _admit(self, sequence: Sequence) -> tuple[tuple[int, int], ...] | None:
        """Give it its blocks, those that are known already and new ones; None if there are too few.

        Returns the blocks to copy first (from, to).
        """
        # For the largest K: the policy may have raised it by the time that the last chunk of the prompt runs.
        needed = self._blocks_for(len(sequence.token_ids) + 1, self._limits.max_num_speculative_tokens)
        prefix_cache = self._prefix_cache if sequence.reuses_blocks else None
        known: list[int] = []
        if prefix_cache is not None:
            prefix_cache.extend(sequence.block_identities, sequence.token_ids)
            known = prefix_cache.find(sequence.block_identities)
        if needed - len(known) + self._allocator.num_unowned(known) > self._allocator.num_free:
            return None
        copies = self._take(sequence, known, needed)
        sequence.num_published = len(known)
        sequence.num_computed = len(known) * self._limits.block_size
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed
            sequence.queue_seconds = time.perf_counter() - sequence.arrival
            if prefix_cache is not None:
                stats = self.prefix_cache_stats
                queried = stats.queried_tokens + len(sequence.token_ids)
                self.prefix_cache_stats = PrefixCacheStats(queried, stats.hit_tokens + sequence.num_computed)
        return copies

    def _take(self, sequence: Sequence, known: list[int], count: int) -> tuple[tuple[int, int], ...]:
        """Make `known` and new ones the `count` blocks of `sequence`, of which there are enough; returns the copies."""
        self._allocator.share(known)
        if known and self._limits.attends_in_place and not self._running:
            # Copying costs about as much as the gather that each step would need of blocks that lie apart.
            row = self._allocator.allocate_row(known, count)
            if row is not None:
                sequence.blocks = row
                if row[0] == known[0]:
                    return ()
                # Nothing can overwrite them before they are copied: this program is the first of the step.
                self._allocator.free(known)
                return tuple(zip(known, row, strict=False))
        new = self._allocator.allocate(count - len(known), after=known[-1] if known else None)
        assert new is not None
        sequence.blocks = known + new
        return ()

    def _publish(self, sequence: Sequence) -> None:
        """Make the blocks findable that are full, with the token after them known and so their drafter KV final."""
        if self._prefix_cache is None:
            return
        first = sequence.num_published
        full = min(sequence.num_computed, len(sequence.token_ids) - 1) // self._limits.block_size
        if full > first:
            self._prefix_cache.extend(sequence.block_identities, sequence.token_ids)
            self._prefix_cache.publish(sequence.blocks[first:full], sequence.block_identities[first:full])
            sequence.num_published = full

    def _prefill(
        self, sequence: Sequence, budget: int, step_k: int, copies: tuple[tuple[int, int], ...] = ()
    ) -> BatchPlan:
        start = sequence.num_computed
        tokens = tuple(sequence.token_ids[start : start + budget])
        end = start + len(tokens)
        if end < len(sequence.token_ids):
            part = self._part(sequence, tokens, 0, sequence.token_ids[end], 0)
        else:
            part = self._part(sequence, tokens, 0, None, self._drafts_wanted(sequence, step_k, end))
        return BatchPlan((part,), part.num_propose, is_prefill=True, copied_blocks=copies)

    def _part(
        self, sequence: Sequence, tokens: tuple[int, ...], num_drafts: int, next_token: int | None, num_propose: int
    ) -> SequencePlan:
        request_id, table = sequence.request.request_id, tuple(sequence.blocks)
        start, choice = sequence.num_computed, sequence.choice
        history = tuple(sequence.token_ids) if choice.is_penalised and next_token is None else ()
        masks: tuple[bytes, ...] = ()
        if sequence.grammar is not None and next_token is None:
            masks = sequence.grammar.masks(tokens[len(tokens) - num_drafts :])
        return SequencePlan(
            request_id, tokens, start, num_drafts, next_token, num_propose, table, choice, history, masks
        )

    def _step_k(self, batch_size: int) -> int:
        if self._limits.max_num_speculative_tokens == 0 or batch_size == 0:
            return 0
        return allowed_k(self._k_policy, batch_size, self._limits.speculative_tokens)

    def _drafts_wanted(self, sequence: Sequence, step_k: int, length: int) -> int:
        """K of one sequence: 0 from position max_model_len - K on (first seed, "Position-aware speculation cutoff").

        The same holds where the drafter's own context ends before the target's.
        """
        longest = min(self._limits.max_model_len, self._limits.max_draft_len or self._limits.max_model_len)
        if length - 1 >= longest - step_k:
            return 0
        limit = sequence.draft_limit
        return step_k if limit is None else min(step_k, limit)

    def _blocks_for(self, num_tokens: int, step_k: int) -> int:
        # K drafts are verified behind the last token, and K - 1 more get drafter KV while the next ones are proposed.
        tokens = min(num_tokens + 2 * step_k, self._limits.max_model_len)
        return -(-tokens // self._limits.block_size)

    def _reserve(self, sequence: Sequence, step_k: int) -> bool:
        """Blocks for one decode step; False if `sequence` itself had to be preempted."""
        missing = self._blocks_for(len(sequence.token_ids), step_k) - len(sequence.blocks)
        while missing > 0:
            blocks = self._allocator.allocate(missing, after=sequence.blocks[-1])
            if blocks is not None:
                sequence.blocks.extend(blocks)
                return True
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Give up the blocks; the sequence is recomputed, prompt and output, when there is room again."""
        self.num_preemptions += 1
        self._running.remove(sequence)
        self._release(sequence)
        sequence.num_computed = 0
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._allocator.free(sequence.blocks)
        sequence.blocks = []
        sequence.num_published = 0
        sequence.drafts = ()
