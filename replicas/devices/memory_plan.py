"""What one rank must hold, before anything is loaded or compiled. From sizes alone: knows no torch.

Weights and KV are exact. What a program needs while it runs is an upper estimate of its largest bucket.
"""

from dataclasses import dataclass
from math import prod

from replicas.devices.weight_sizes import DecoderSizes, Precision, StoredModel, ceil_div, weight_bytes
from replicas.errors import ConfigError

GIB = 2**30
MIB = 2**20
LOGITS_BYTES = 4
"""Logits and probabilities are float32 everywhere."""
LOGITS_COPIES = 3
"""Raw, adjusted and as probabilities."""


@dataclass(frozen=True, slots=True)
class MemoryPool:
    """The memory of one rank, in bytes."""

    name: str
    capacity: int
    reserved: int = 0
    """For everything that is no tensor: the device's runtime, code, the host's libraries."""


@dataclass(frozen=True, slots=True)
class LargestProgram:
    """The largest shapes of the buckets."""

    batch_size: int
    chunk_tokens: int
    decode_tokens: int
    """1 + K."""
    context_tokens: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one rank. Build it with `plan_memory`, and `check` it before loading."""

    pool: MemoryPool
    ranks: int
    target_weights: int
    drafter_weights: int
    rotary_tables: int
    working: int
    """While a program runs, or while the largest weights are converted: whatever is more."""
    block_bytes: int
    """One KV block, target and drafter."""
    block_size: int
    """Tokens a block."""
    blocks_a_sequence: int
    asked_blocks: int | None
    """`num_blocks` of the config."""
    wanted_blocks: int
    """Room for `max_num_seqs` sequences of `max_model_len`, and the null block."""

    @property
    def fixed(self) -> int:
        """Everything but KV."""
        weights = self.target_weights + self.drafter_weights
        return weights + self.rotary_tables + self.working + self.pool.reserved

    @property
    def blocks_that_fit(self) -> int:
        """KV blocks beside everything else; 0 if even that does not fit."""
        return max((self.pool.capacity - self.fixed) // self.block_bytes, 0)

    @property
    def sequences_that_fit(self) -> int:
        """The largest useful `max_num_seqs`: sequences of `max_model_len` at once, beside the null block."""
        return max((self.blocks_that_fit - 1) // self.blocks_a_sequence, 0)

    @property
    def num_blocks(self) -> int:
        """What the config asks for, or what fits of what `max_num_seqs` wants: with less, sequences are preempted."""
        return self.asked_blocks or min(self.wanted_blocks, self.blocks_that_fit)

    @property
    def needed(self) -> int:
        """Bytes without which nothing can be served."""
        return self.fixed + self.block_bytes * (self.asked_blocks or 1 + self.blocks_a_sequence)

    def check(self) -> None:
        """Raise ConfigError, with the numbers, if this cannot fit."""
        if self.needed > self.pool.capacity:
            raise ConfigError(
                f"{gib(self.needed)} GiB are needed of {self.pool.name}, which has {gib(self.pool.capacity)} "
                f"({self.breakdown()}): {self._remedy()}"
            )

    def breakdown(self) -> str:
        """Every part of `needed`, in GiB."""
        parts = {
            "weights": self.target_weights,
            "drafter": self.drafter_weights,
            "rotary tables": self.rotary_tables,
            "programs at work": self.working,
            "reserve": self.pool.reserved,
        }
        kv = f"KV of {self.asked_blocks} blocks" if self.asked_blocks else "KV of one sequence of max_model_len"
        return ", ".join(f"{name} {gib(size)}" for name, size in (parts | {kv: self.needed - self.fixed}).items())

    def _remedy(self) -> str:
        if self.asked_blocks and self.blocks_that_fit > self.blocks_a_sequence:
            return f"num_blocks may be at most {self.blocks_that_fit}"
        # One block is the null block; a sequence that fits has at least one of its own.
        if self.blocks_that_fit > 1:
            return f"max_model_len may be at most {(self.blocks_that_fit - 1) * self.block_size}"
        return f"lower max_num_batched_tokens, raise tensor_parallel_size above {self.ranks}, or take a smaller model"


def plan_memory(
    pool: MemoryPool,
    ranks: int,
    precision: Precision,
    target: StoredModel,
    drafter: StoredModel | None,
    program: LargestProgram,
    converts_weights: bool,
    block_size: int,
    max_num_seqs: int,
    asked_blocks: int | None,
    weight_copies: int = 1,
) -> MemoryPlan:
    """The plan of one of `ranks` equal ranks; `converts_weights` if that happens in this pool and not before."""
    models = [target] if drafter is None else [target, drafter]
    shares = [model.sizes.of_rank(ranks) for model in models]
    pairs = list(zip(models, shares, strict=True))
    running = max(_running(model, share, ranks, precision, program) for model, share in pairs)
    gathered = program.batch_size * program.context_tokens * sum(s.kv_elements // s.num_layers for s in shares)
    converting = max(_largest_conversion(model, ranks) for model in models) if converts_weights else 0
    weights = [weight_copies * weight_bytes(model, ranks, precision) for model in models]
    blocks = ceil_div(program.context_tokens, block_size)
    return MemoryPlan(
        pool=pool,
        ranks=ranks,
        target_weights=weights[0],
        drafter_weights=sum(weights[1:]),
        rotary_tables=sum(_rotary_bytes(model, share, precision) for model, share in pairs),
        working=max(running + gathered * precision.activation, converting),
        block_bytes=sum(share.kv_elements for share in shares) * block_size * precision.activation,
        block_size=block_size,
        blocks_a_sequence=blocks,
        asked_blocks=asked_blocks,
        wanted_blocks=1 + max_num_seqs * blocks,
    )


def _rotary_bytes(model: StoredModel, share: DecoderSizes, precision: Precision) -> int:
    """Cosines and sines over the query, key and value heads (replicas/models/layers.py)."""
    return 2 * model.positions * (share.num_heads + 2 * share.num_kv_heads) * share.head_dim * precision.activation


def _running(model: StoredModel, share: DecoderSizes, ranks: int, precision: Precision, program: LargestProgram) -> int:
    """Upper estimate of the activations of one layer and the logits, in the larger of prefill and decode."""
    heads = (share.num_heads + 2 * share.num_kv_heads) * share.head_dim
    # Input, residual, normed and three tapped states; heads, their cosines, sines and rotation; gate, up, product.
    row = 6 * share.hidden_size + 4 * heads + 3 * share.intermediate_size
    vocab = ceil_div(model.vocab_size, ranks) * LOGITS_COPIES * LOGITS_BYTES

    def step(batch: int, tokens: int, choices: int) -> int:
        rows = batch * tokens
        # The KV heads share one mask; each has scores of its own.
        attended = rows * program.context_tokens * (share.num_heads // share.num_kv_heads + share.num_heads)
        return (rows * row + attended) * precision.activation + batch * choices * vocab

    decode = step(program.batch_size, program.decode_tokens, program.decode_tokens)
    return max(step(1, program.chunk_tokens, 1), decode)


def _largest_conversion(model: StoredModel, ranks: int) -> int:
    """The largest weight in float32, twice: as read, and as it is packed or sent."""
    return 2 * 4 * max(map(prod, model.tensors.values()), default=0) // ranks


def gib(size: int) -> str:
    """`size` bytes in GiB, to two places."""
    return f"{size / GIB:.2f}"
