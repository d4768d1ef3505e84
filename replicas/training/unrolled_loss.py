"""What training minimises: soft cross-entropy over the unrolled draft steps."""

import torch
from torch import Tensor

from replicas.training.head_module import DraftHead
from replicas.training.options import TrainOptions
from replicas.training.shards import PackedBatch
from replicas.training.soft_cross_entropy import soft_cross_entropy, target_probabilities
from replicas.training.unroll import unroll


def unrolled_loss(
    head: DraftHead,
    embedding: Tensor,
    labels_head: Tensor,
    draft_ids: Tensor,
    batch: PackedBatch,
    options: TrainOptions,
) -> tuple[Tensor, float]:
    """(loss to minimise, mean loss of the first draft step).

    Soft cross-entropy against the target's distribution over the draft vocabulary. Positions whose emitted token cannot
    be drafted are left out. `labels_head` [draft vocabulary, hidden]: the target's rows of the draft vocabulary, in the
    dtype of the products.
    """
    needed = torch.zeros(int(batch.bounds[-1]), dtype=torch.bool)
    needed[batch.chains + 1] = True
    for _ in range(1, options.unroll_steps):
        needed[1:] = needed[1:] | needed[:-1]
    place = needed.cumsum(0) - 1
    wanted = target_probabilities(batch.final[needed], labels_head)
    losses = list[Tensor]()

    def draft(normed: Tensor, label_rows: Tensor) -> Tensor:
        loss, best = soft_cross_entropy(normed, head.lm_head.weight, wanted, place[label_rows])
        losses.append(loss / len(batch.chains))
        return best

    for _ in unroll(head, embedding, draft_ids, batch, options.unroll_steps, draft):
        pass
    total = sum((options.step_decay**index * loss for index, loss in enumerate(losses)), torch.zeros(()))
    return total, float(losses[0].detach())
