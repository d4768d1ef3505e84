"""The shapes that device programs are built for. No torch: a planner can list them without a device."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

PREFILL_STEP = 16
"""Prompt chunks are padded to a multiple of this."""
SMALLEST_LENGTH = 64
"""Shortest context that attention spans, in tokens."""
COARSE_PREFILL_STEP, COARSE_SMALLEST_LENGTH = 128, 512
"""The same where each program costs minutes and memory."""


@dataclass(frozen=True, slots=True)
class ShapeBuckets:
    """Every allowed batch size, chunk length (tokens), context length (blocks) and K, ascending."""

    batch_sizes: tuple[int, ...]
    chunk_tokens: tuple[int, ...]
    context_blocks: tuple[int, ...]
    speculative_tokens: tuple[int, ...]
    """0 among them: a batch in which nobody drafts."""
    block_size: int

    @staticmethod
    def build(
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int,
        speculative_tokens: Sequence[int],
        is_coarse: bool = False,
    ) -> "ShapeBuckets":
        """Sizes that grow by half or a third each time, so that padding costs little, up to the given limits.

        Coarse ones double, and begin higher: a sixth of the programs, for a device on which each is compiled.
        """
        max_blocks = -(-max_model_len // block_size)
        lengths = _steps(COARSE_SMALLEST_LENGTH if is_coarse else SMALLEST_LENGTH, max_model_len, is_coarse)
        blocks = sorted({min(-(-length // block_size), max_blocks) for length in lengths})
        chunks = _steps(COARSE_PREFILL_STEP if is_coarse else PREFILL_STEP, max_num_batched_tokens, is_coarse)
        batches = _steps(1, max_num_seqs, is_coarse)
        ks = sorted({0, *speculative_tokens})
        return ShapeBuckets(tuple(batches), tuple(chunks), tuple(blocks), tuple(ks), block_size)

    def batch_size(self, sequences: int) -> int:
        """Smallest batch that holds `sequences`."""
        return self.batch_sizes[bisect_left(self.batch_sizes, sequences)]

    def chunk(self, tokens: int) -> int:
        """Smallest prompt chunk that holds `tokens`."""
        return self.chunk_tokens[bisect_left(self.chunk_tokens, tokens)]

    def context(self, blocks: int) -> int:
        """Smallest context, in blocks, that holds `blocks`."""
        return self.context_blocks[bisect_left(self.context_blocks, blocks)]

    def speculative(self, k: int) -> int:
        """Smallest K that is not below `k`: a request's own cap may lie between those that there are."""
        return self.speculative_tokens[bisect_left(self.speculative_tokens, k)]

    def chunks_in_context(self) -> list[tuple[int, int]]:
        """Chunk (tokens) and context (blocks) of every program for prompts: none whose context is too short."""
        # A bucket begins behind the one before it; the token after a chunk needs a slot, too.
        return [
            (tokens, blocks)
            for shorter, tokens in pairwise((0, *self.chunk_tokens))
            for blocks in self.context_blocks
            if blocks * self.block_size > shorter + 1
        ]


def _steps(smallest: int, largest: int, is_coarse: bool) -> list[int]:
    """Smallest * (1, 2, 3, 4, 6, 8, 12, ...), or its doubles alone, below `largest`, then `largest`."""
    steps: list[int] = []
    power = 1
    while smallest * power < largest:
        steps.append(smallest * power)
        if power > 1 and not is_coarse and smallest * power * 3 // 2 < largest:
            steps.append(smallest * power * 3 // 2)
        power *= 2
    return [*steps, largest]
