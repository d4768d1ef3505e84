"""Several draft steps at once from every position: the EAGLE-3 paper's training-time test (arXiv 2503.01840).

A *chain* is one draft, begun at a row of a packed batch. Its step s reads token t_{q+s+1} beside the head's own
state of step s - 1, and attends to the true-feature keys up to its start q and to its own keys of steps 1 .. s:
just as at inference, where later drafts see the head's own states. Chains do not see each other.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from replicas.training.head_module import DraftHead
from replicas.training.shards import PackedBatch


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One unrolled step of the chains that reached it."""

    chains: Tensor
    """[chains]: the rows at which they began."""
    label_rows: Tensor
    """[chains]: rows whose final state predicts the drafted token, and whose `next_tokens` is the one emitted."""
    hits: Tensor
    """[chains]: True where the head's best token is the emitted one."""


Draft = Callable[[Tensor, Tensor], Tensor]
"""(normed states [chains, hidden], label rows [chains]) -> the best draft ids [chains]. Training adds its loss here."""


def unroll(
    head: DraftHead,
    embedding: Tensor,
    draft_ids: Tensor,
    batch: PackedBatch,
    steps: int,
    draft: Draft,
    hits_only: bool = True,
) -> Iterator[DraftStep]:
    """Up to `steps` draft steps of the batch's chains, along the emitted tokens.

    `draft_ids` [vocabulary] maps target ids to draft ids, -1 outside. With `hits_only` a chain ends at its first
    wrong draft, as at greedy inference, and before a token that cannot be drafted: later steps then cost, and learn
    from, only what inference will meet.
    """
    fused = head.fuse(batch.taps)
    mixed = head.mix(embedding[batch.next_tokens], fused)
    keys, values = head.keys_values(mixed, batch.positions)
    chains = batch.chains
    if hits_only:
        chains = chains[draft_ids[batch.next_tokens[chains + 1]] >= 0]
    hidden, mixed = fused[chains], mixed[chains]
    last_rows = batch.bounds[1:][torch.searchsorted(batch.bounds[1:], chains, right=True)] - 1
    own_keys = keys.new_empty(len(chains), 0, *keys.shape[1:])
    own_values = own_keys
    for step in range(steps):
        positions = batch.positions[chains] + step
        if step:
            mixed = head.mix(embedding[batch.next_tokens[chains + step]], hidden)
            new_keys, new_values = head.keys_values(mixed, positions)
            own_keys, own_values = (
                torch.cat([own_keys, new_keys[:, None]], 1),
                torch.cat([own_values, new_values[:, None]], 1),
            )
        queries = head.queries(mixed, positions)
        hidden = head.finish(hidden, attend(queries, keys, values, own_keys, own_values, chains, batch.bounds))
        label_rows = chains + step + 1
        hits = draft(head.norm(hidden), label_rows) == draft_ids[batch.next_tokens[label_rows]]
        yield DraftStep(chains, label_rows, hits)
        alive = label_rows < last_rows
        if hits_only:
            following = batch.next_tokens[(label_rows + 1).clamp(max=len(batch.next_tokens) - 1)]
            alive = alive & hits & (draft_ids[following] >= 0)
        kept = alive.nonzero()[:, 0]
        if not len(kept):
            return
        chains, hidden, last_rows = chains[kept], hidden[kept], last_rows[kept]
        own_keys, own_values = own_keys[kept], own_values[kept]


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, chains: Tensor, bounds: Tensor
) -> Tensor:
    """[chains, heads, head_dim]: each chain over its conversation's rows up to its start, and over its own keys.

    `queries` [chains, heads, head_dim]; `keys`, `values` [rows, kv_heads, head_dim]; `own_keys`, `own_values`
    [chains, steps, kv_heads, head_dim]; `chains` ascending rows; `bounds` the conversations' row bounds.
    """
    kv_heads, head_dim = keys.shape[1:]
    grouped = queries.view(len(chains), kv_heads, -1, head_dim) / head_dim**0.5
    own_scores = torch.einsum("cgrd,csgd->grcs", grouped, own_keys)
    pieces: list[Tensor] = []
    cuts = torch.searchsorted(chains, bounds).tolist()
    for index, (first, last) in enumerate(itertools.pairwise(cuts)):
        if first == last:
            continue
        rows = slice(int(bounds[index]), int(chains[last - 1]) + 1)
        later = torch.arange(rows.start, rows.stop) > chains[first:last, None]
        scores = torch.einsum("cgrd,lgd->grcl", grouped[first:last], keys[rows]).masked_fill(later, -torch.inf)
        weights = torch.cat([scores, own_scores[:, :, first:last]], -1).softmax(-1)
        over_rows, over_own = weights.split([scores.shape[-1], own_keys.shape[1]], -1)
        attended = torch.einsum("grcl,lgd->cgrd", over_rows, values[rows])
        pieces.append(attended + torch.einsum("grcs,csgd->cgrd", over_own, own_values[first:last]))
    return torch.cat(pieces).reshape(len(chains), -1, head_dim)
