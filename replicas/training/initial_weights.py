"""Where training begins: a linear predictor solved in closed form, around pieces of the target.

The target's next final state f_{p+1} is regressed on the taps at p and the embedding of t_{p+1}. The taps' part becomes
`fc`; the embedding's part, reduced to the rank that the value heads can carry, becomes v_proj and o_proj of heads
that look at their own position. The draft head starts with the target's rows of the draft vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from replicas.models.checkpoint import Checkpoint
from replicas.models.model_config import ModelConfig
from replicas.training.head_module import DraftHead
from replicas.training.shards import Conversation, pack

RIDGE = 1e-3
"""Of the mean diagonal of the normal equations."""
SELF_ATTENTION = 1.0
"""Scale of tied queries and keys: the logit of a position on itself is about 8 of these squared (head_dim 64)."""


@dataclass(frozen=True, slots=True)
class LinearFit:
    """f_{p+1} ~ taps @ of_taps.T + embedding @ of_embedding.T."""

    tap_scale: Tensor
    """[taps * hidden]: root mean square of each channel."""
    of_taps: Tensor
    """[hidden, taps * hidden], for taps divided by `tap_scale`."""
    of_embedding: Tensor
    """[hidden, hidden], for embeddings normed to unit root mean square."""
    embedding_root: Tensor
    """[hidden, hidden]: Cholesky factor of the embeddings' second moments."""


def fit_next_state(
    conversations: Sequence[Conversation], embedding: Tensor, config: ModelConfig, max_rows: int
) -> LinearFit:
    """Ridge regression over at most `max_rows` rows. First tokens are left out: their states are attention sinks."""
    gram: Tensor | None = None
    scale: Tensor | None = None
    rows = 0
    for begin in range(0, len(conversations), 32):
        batch = pack(list(conversations[begin : begin + 32]), config.hidden_size)
        row = (batch.positions[:-1] > 0).logical_and(batch.positions[1:] > batch.positions[:-1]).nonzero()[:, 0]
        if scale is None:
            scale = batch.taps[row].pow(2).mean(0).sqrt().clamp(min=1e-6)
        embedded = nn.functional.rms_norm(embedding[batch.next_tokens[row]], (config.hidden_size,))
        joined = torch.cat([batch.taps[row] / scale, embedded, batch.final[row + 1]], -1)
        product = joined.T @ joined
        gram = product if gram is None else gram + product
        rows += len(row)
        if rows >= max_rows:
            break
    assert gram is not None
    assert scale is not None
    gram = gram.double() / rows
    inputs = len(scale) + config.hidden_size
    normal = gram[:inputs, :inputs] + RIDGE * gram[:inputs, :inputs].diagonal().mean() * torch.eye(
        inputs, dtype=gram.dtype
    )
    solution = torch.linalg.solve(normal, gram[:inputs, inputs:]).T
    root = torch.linalg.cholesky(normal[len(scale) :, len(scale) :])
    return LinearFit(scale, solution[:, : len(scale)].float(), solution[:, len(scale) :].float(), root.float())


@torch.no_grad()
def initialise(
    head: DraftHead,
    fit: LinearFit,
    target: Checkpoint,
    target_ids: Tensor,
    embedding: Tensor,
    state_scale: float,
    seed: int,
) -> None:
    """Fill `head`. `state_scale` is the root mean square of the target's final states."""
    config, attention, mlp = head.config, head.midlayer.self_attn, head.midlayer.mlp
    torch.manual_seed(seed)
    hidden, heads, kv_heads, head_dim = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
    head.tap_scale.copy_(fit.tap_scale)
    head.fc.weight.copy_(fit.of_taps)
    head.norm.weight.fill_(state_scale)
    head.lm_head.weight.copy_(embedding[target_ids])
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        projection.weight.normal_(std=0.3 / projection.in_features**0.5)
    # Random projections of the embedding, the same for queries and keys, make a position see itself first.
    look = torch.randn(kv_heads, head_dim, hidden) * SELF_ATTENTION / hidden**0.5
    attention.k_proj.weight.view(kv_heads, head_dim, 2 * hidden)[:, :, :hidden] = look
    attention.q_proj.weight.view(kv_heads, -1, head_dim, 2 * hidden)[:, 0, :, :hidden] = look
    # Best approximation of the embedding's part by the value heads' rank, weighted by how embeddings spread.
    left, sizes, right = torch.linalg.svd(fit.of_embedding @ fit.embedding_root, full_matrices=False)
    rank = min(kv_heads * head_dim, hidden)
    into = torch.linalg.solve(fit.embedding_root, right[:rank], left=False) * sizes[:rank, None].sqrt()
    out = left[:, :rank] * sizes[:rank].sqrt()
    attention.v_proj.weight[:rank, :hidden] = into
    output = attention.o_proj.weight.view(hidden, kv_heads, heads // kv_heads, head_dim)
    for group in range(kv_heads):
        piece = out[:, group * head_dim : (group + 1) * head_dim]
        output[:, group, 0, : piece.shape[1]] = piece
    last = f"model.layers.{config.num_layers - 1}.mlp."
    wide = (config.intermediate_size, hidden)
    mlp.gate_proj.weight.copy_(target.tensor(last + "gate_proj.weight", *wide))
    mlp.up_proj.weight.copy_(target.tensor(last + "up_proj.weight", *wide))
    mlp.down_proj.weight.zero_()
