"""What one rank's share of a checkpoint weighs once it is placed. From shapes alone: knows no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]
INDEX_BYTES = 4
"""Of an int32."""


@dataclass(frozen=True, slots=True)
class DecoderSizes:
    """A decoder's dimensions, of the whole model or of one rank's share."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_layers: int

    def of_rank(self, ranks: int) -> "DecoderSizes":
        """One rank's share. KV heads are replicated when there are fewer than ranks; what does not divide is padded."""
        group = self.num_heads // self.num_kv_heads
        if self.num_kv_heads >= ranks:
            kv_heads = ceil_div(self.num_kv_heads, ranks)
            heads = kv_heads * group
        else:
            # What ranks there are beyond a whole number of copies have nothing but padding.
            kv_heads = 1
            heads = ceil_div(group, ranks // self.num_kv_heads)
        intermediate = ceil_div(self.intermediate_size, ranks)
        return DecoderSizes(self.hidden_size, intermediate, heads, kv_heads, self.head_dim, self.num_layers)

    @property
    def kv_elements(self) -> int:
        """Keys and values of one token."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes an element, and how a device stores a product's weights."""

    linear: int
    """Weights of products."""
    activation: int
    """Everything else: activations, KV, embedding, norms, rotary tables."""
    input_block: int = 1
    """A product's weights are stored for a multiple of this many inputs."""
    hidden_multiple: int = 1
    """The hidden size is padded to a multiple of this."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model as it lies on disk."""

    sizes: DecoderSizes
    tensors: Mapping[str, Shape]
    positions: int
    """Of rotary tables of its own; 0 if it uses another model's."""
    vocab_size: int
    """Of its logits."""
    ties_head: bool = False
    """The embedding is placed a second time, as the head's product."""


@dataclass(frozen=True, slots=True)
class Part:
    """How a tensor is split over ranks, and which of its dimensions are the hidden size, once or side by side."""

    split_dim: int | None
    unit: str | None
    """Field of DecoderSizes that is divided; None: the dimension itself."""
    hidden_dims: tuple[int, ...]


PARTS = {
    "q_proj": Part(0, "num_heads", (1,)),
    "k_proj": Part(0, "num_kv_heads", (1,)),
    "v_proj": Part(0, "num_kv_heads", (1,)),
    "o_proj": Part(1, "num_heads", (0,)),
    "gate_proj": Part(0, "intermediate_size", (1,)),
    "up_proj": Part(0, "intermediate_size", (1,)),
    "down_proj": Part(1, "intermediate_size", (0,)),
    "embed_tokens": Part(0, None, (1,)),
    "lm_head": Part(0, None, (1,)),
    "fc": Part(None, None, (0, 1)),
    "q_norm": Part(None, None, ()),
    "k_norm": Part(None, None, ()),
}
"""Column, row and vocabulary sharding; a head's `fc` is whole (first seed, "Eagle3 Draft Model Architecture")."""
NORM = Part(None, None, (0,))
BIAS = Part(None, None, ())
UNPLACED_ENDINGS = ("t2d", "inv_freq")
"""Tensors of a checkpoint that drafting and decoding do not need."""


def weight_bytes(model: StoredModel, ranks: int, precision: Precision) -> int:
    """Bytes of one rank's weights."""
    hidden = model.sizes.hidden_size
    padded = ceil_div(hidden, precision.hidden_multiple) * precision.hidden_multiple
    total = 0
    for name, shape in model.tensors.items():
        if name.endswith(UNPLACED_ENDINGS):
            continue
        if name.endswith("d2t"):
            total += shape[0] * INDEX_BYTES
            continue
        module, kind = ("", *name.split("."))[-2:]
        part = PARTS.get(module, NORM if kind == "weight" else BIAS)
        share = _rank_shape(part, shape, model.sizes, ranks)
        placed = [
            size // hidden * padded if dim in part.hidden_dims and padded != hidden else size
            for dim, size in enumerate(share)
        ]
        is_product = len(shape) == 2 and module != "embed_tokens"
        total += _product_bytes(placed, precision) if is_product else prod(placed) * precision.activation
    if model.ties_head:
        total += _product_bytes((ceil_div(model.vocab_size, ranks), padded), precision)
    return total


def _product_bytes(shape: Sequence[int], precision: Precision) -> int:
    rows, columns = shape
    return rows * ceil_div(columns, precision.input_block) * precision.input_block * precision.linear


def _rank_shape(part: Part, shape: Shape, sizes: DecoderSizes, ranks: int) -> Shape:
    """`shape` cut to one rank's share. A bias is split as the rows of its weight."""
    dim = part.split_dim
    if dim is None or dim >= len(shape):
        return shape
    if part.unit is None:
        share = ceil_div(shape[dim], ranks)
    else:
        whole, mine = getattr(sizes, part.unit), getattr(sizes.of_rank(ranks), part.unit)
        share = shape[dim] // whole * mine
    return (*shape[:dim], share, *shape[dim + 1 :])


def ceil_div(value: int, divisor: int) -> int:
    """`value` / `divisor`, rounded up."""
    return -(-value // divisor)
