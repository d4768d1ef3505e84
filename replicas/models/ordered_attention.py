"""Attention whose additions run in one order, key after key, whatever else is in the batch (`deterministic`).

Gemm kernels add in an order that depends on how many rows and keys there are, and on where memory begins. Here
every score is a dot product of its own and every output a sum over keys in the order of their positions. A key that
a row must not see has weight 0 and adds nothing, so that the length of the padded context is of no account either.
"""

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from replicas.kv_cache.paged_cache import PagedCache

PIECE = 1 << 17
"""Scores computed at a time: the temporaries of a prompt's chunk should stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows of a batch; one row of `scores` a row and head."""

    scores: Tensor
    """CSR [rows * heads, stored rows]: which keys are looked at, with 0 where a row may look and -inf where not."""
    values: Tensor
    """[rows * heads * length] int32: where the values of the same positions are stored."""
    starts: Tensor
    """[rows * heads] int32: where each row begins in `values`."""


@dataclass(frozen=True, slots=True)
class OrderedAttention:
    """What a step attends to; computed once, shared by all layers of a model. Reads blocks where they lie."""

    pieces: tuple[Piece, ...]

    @staticmethod
    def of(hidden: Tensor, block_tables: Tensor, cache: PagedCache, num_heads: int) -> "OrderedAttention":
        """Rows may look at the positions of `block_tables` [batch, blocks] where `hidden` [batch, tokens, length] is
        False.
        """
        batch, tokens, length = hidden.shape
        group = num_heads // cache.num_kv_heads
        positions = torch.arange(length, device=hidden.device, dtype=torch.int32).expand(batch, length)
        stored = cache.rows_of(positions, block_tables).view(batch, length, 2, cache.num_kv_heads)
        # [keys or values, batch, heads, length], then a row of each token.
        stored = stored.permute(2, 0, 3, 1).repeat_interleave(group, 2)[:, :, None]
        keys, values = stored.expand(2, batch, tokens, num_heads, length).flatten(1, 2)
        mask = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)
        mask = mask[:, :, None].expand(batch, tokens, num_heads, length).flatten(0, 1)
        rows = max(1, PIECE // (num_heads * length))
        parts = zip(keys.split(rows), values.split(rows), mask.split(rows), strict=True)
        return OrderedAttention(tuple(_piece(*part, cache.num_rows) for part in parts))

    def attend(self, queries: Tensor, stored: Tensor) -> Tensor:
        """`queries` [rows, heads, head_dim] over `stored` [stored rows, head_dim] -> [rows, heads * head_dim]."""
        scale, per_row = queries.shape[2] ** -0.5, queries.flatten(0, 1)
        pieces = zip(self.pieces, per_row.split([len(piece.starts) for piece in self.pieces]), strict=True)
        out = [_attend(piece, rows, stored, scale) for piece, rows in pieces]
        return (out[0] if len(out) == 1 else torch.cat(out)).view(len(queries), -1)


def _piece(keys: Tensor, values: Tensor, mask: Tensor, num_rows: int) -> Piece:
    rows, length = keys.shape[0] * keys.shape[1], keys.shape[2]
    starts = torch.arange(0, (rows + 1) * length, length, device=keys.device, dtype=torch.int32)
    size = (rows, num_rows)
    with warnings.catch_warnings():
        # torch says once a process that CSR is in beta.
        warnings.simplefilter("ignore")
        scores = torch.sparse_csr_tensor(starts, keys.flatten(), mask.flatten(), size, check_invariants=False)
    return Piece(scores, values.flatten(), starts[:-1])


def _attend(piece: Piece, queries: Tensor, stored: Tensor, scale: float) -> Tensor:
    # Sampled products are dot products one by one; a bag adds its rows one by one; so does cumsum.
    scores = torch.sparse.sampled_addmm(piece.scores, queries, stored.t(), alpha=scale).values().view(len(queries), -1)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    totals = weights.cumsum(-1)[:, -1:]
    out = functional.embedding_bag(piece.values, stored, piece.starts, mode="sum", per_sample_weights=weights.flatten())
    return out / totals
