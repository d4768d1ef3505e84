"""The optimisers of a head: Muon for the layer's matrices, AdamW for the rest."""

import torch

from replicas.training.head_module import DraftHead
from replicas.training.options import TrainOptions


def build_optimizers(head: DraftHead, options: TrainOptions) -> list[torch.optim.Optimizer]:
    """Muon (orthogonalised momentum) learns more from a batch than AdamW; a vocabulary's rows are not its case.

    Its step is scaled to AdamW's root mean square, so that one learning rate serves both.
    """
    named = dict(head.named_parameters())
    rows = named.pop("lm_head.weight")
    matrices = [parameter for parameter in named.values() if parameter.dim() == 2]
    vectors = [parameter for parameter in named.values() if parameter.dim() == 1]
    rate, decay = options.learning_rate, options.weight_decay
    groups = [{"params": [rows], "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)]
