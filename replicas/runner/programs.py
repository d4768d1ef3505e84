"""Which device programs an engine runs: a name for each, and the list of all. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from replicas.kv_cache.block_allocator import is_row
from replicas.runner.shape_buckets import ShapeBuckets
from replicas.scheduling.step_plan import BatchPlan, SequencePlan

Sampling = Literal["greedy", "sampled", "filtered"]
SAMPLINGS: tuple[Sampling, ...] = ("greedy", "sampled", "filtered")


@dataclass(frozen=True, slots=True)
class Variant:
    """What the sequences of a batch ask for together, and so which operations their program holds."""

    sampling: Sampling = "greedy"
    has_biases: bool = False
    has_penalties: bool = False
    has_logprobs: bool = False
    has_prompt_logprobs: bool = False
    has_masks: bool = False
    """A grammar says which tokens may be chosen."""

    @property
    def merged(self) -> "Variant":
        """The plain one, or the one with everything: nobody's tokens change by operations that another asked for.

        Only the prompt's log-probabilities stay apart: they are a product with the head for every token of a chunk.
        """
        return self if self == Variant() else Variant("filtered", True, True, True, self.has_prompt_logprobs, True)


@dataclass(frozen=True, slots=True)
class ProgramKey:
    """Names a program completely: batches with the same key give tensors of the same shapes to the same operations."""

    is_prefill: bool
    batch: int
    """Sequences, padding among them."""
    tokens: int
    """Of each sequence: those of a prompt's chunk, or 1 + K; 1 where nobody has drafts to verify."""
    num_speculative_tokens: int
    """K: how many tokens are drafted for the next step."""
    context_blocks: int
    """KV blocks that attention spans."""
    variant: Variant
    is_in_place: bool = False
    """A lone sequence's neighbouring blocks are attended without a gather."""

    @property
    def choices(self) -> int:
        """Tokens of each sequence after which the target chooses."""
        return 1 if self.is_prefill else self.tokens


@dataclass(frozen=True, slots=True)
class ProgramSet:
    """The programs of one engine: which one runs a batch, and all that there are."""

    buckets: ShapeBuckets
    num_blocks: int
    attends_in_place: bool
    merges_variants: bool
    """True where each program has its price, in compiling it: few variants then, each with more than was asked for."""

    def of(self, batch: BatchPlan) -> ProgramKey:
        """The program that runs `batch`."""
        parts, buckets = batch.sequences, self.buckets
        k = buckets.speculative(batch.num_speculative_tokens)
        rows = buckets.batch_size(len(parts))
        blocks = buckets.context(max(len(part.block_table) for part in parts))
        variant = _variant(parts, batch.is_prefill)
        return ProgramKey(
            is_prefill=batch.is_prefill,
            batch=rows,
            tokens=buckets.chunk(len(parts[0].token_ids)) if batch.is_prefill else self._verified(parts, k),
            num_speculative_tokens=k,
            context_blocks=blocks,
            variant=variant.merged if self.merges_variants else variant,
            is_in_place=self.attends_in_place and rows == 1 and self._fits_in_place(parts[0].block_table, blocks),
        )

    def all(self) -> Iterator[ProgramKey]:
        """Every program that `of` can name."""
        for batch, k, blocks in product(
            self.buckets.batch_sizes, self.buckets.speculative_tokens, self.buckets.context_blocks
        ):
            for variant, is_in_place in product(self._variants(is_prefill=False), self._places(batch, blocks)):
                for tokens in sorted({1 + k} if self.merges_variants else {1, 1 + k}):
                    yield ProgramKey(False, batch, tokens, k, blocks, variant, is_in_place)
        for (tokens, blocks), k in product(self.buckets.chunks_in_context(), self.buckets.speculative_tokens):
            for variant, is_in_place in product(self._variants(is_prefill=True), self._places(1, blocks)):
                yield ProgramKey(True, 1, tokens, k, blocks, variant, is_in_place)

    def largest(self) -> list[ProgramKey]:
        """Those that need the most memory, with all that can be asked for; then each batch size once, plain and short.

        Enough where nothing is compiled: buffers reach their size, and every operation has run once.
        """
        buckets = self.buckets
        batch, k, blocks = buckets.batch_sizes[-1], buckets.speculative_tokens[-1], buckets.context_blocks[-1]
        tokens, span = buckets.chunks_in_context()[-1]
        keys = [
            ProgramKey(True, 1, tokens, k, span, Variant("filtered", True, True, True, True, True)),
            ProgramKey(False, batch, 1 + k, k, blocks, Variant("filtered", True, True, True, False, True)),
        ]
        shortest = buckets.context_blocks[0]
        for size in buckets.batch_sizes:
            keys += [ProgramKey(False, size, 1 + k, k, shortest, Variant(), at) for at in self._places(size, shortest)]
        return keys

    def _verified(self, parts: tuple[SequencePlan, ...], k: int) -> int:
        """Tokens of each sequence. Where a program has its price, steps without drafts run that of steps with them."""
        return 1 + k if self.merges_variants or any(part.num_drafts for part in parts) else 1

    def _fits_in_place(self, table: tuple[int, ...], blocks: int) -> bool:
        """True if `table` is a row, and the padded context after it stays in the cache."""
        return is_row(table) and table[0] + blocks <= self.num_blocks

    def _places(self, batch: int, blocks: int) -> tuple[bool, ...]:
        # Block 0 is nobody's: a row begins at 1 or later.
        return (False, True) if self.attends_in_place and batch == 1 and 1 + blocks <= self.num_blocks else (False,)

    def _variants(self, is_prefill: bool) -> list[Variant]:
        flags = (False, True)
        of_prompts = flags if is_prefill else (False,)
        found = (Variant(*fields) for fields in product(SAMPLINGS, flags, flags, flags, of_prompts, flags))
        return list(dict.fromkeys(variant.merged if self.merges_variants else variant for variant in found))


def _variant(parts: tuple[SequencePlan, ...], is_prefill: bool) -> Variant:
    choices = [part.choice for part in parts]
    sampling: Sampling = "greedy"
    if not all(choice.is_greedy for choice in choices):
        sampling = "filtered" if any(choice.is_filtered for choice in choices) else "sampled"
    return Variant(
        sampling=sampling,
        has_biases=any(choice.biases for choice in choices),
        has_penalties=any(choice.is_penalised for choice in choices),
        has_logprobs=any(choice.num_logprobs is not None for choice in choices),
        has_prompt_logprobs=is_prefill and choices[0].num_prompt_logprobs is not None,
        has_masks=any(part.masks for part in parts),
    )
