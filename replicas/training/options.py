"""What shapes a training run, and the learning rate that follows from it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What shapes a run, besides where things lie."""

    minutes: float = 40.0
    """Training time; the learning rate follows the share that is spent."""
    draft_vocab_size: int = 8192
    """Tokens that can be drafted; 0: those of the head to go on from."""
    unroll_steps: int = 4
    batch_drafts: int = 1024
    """Draft positions a batch."""
    learning_rate: float = 1e-3
    warmup: float = 0.03
    """Share of the time."""
    weight_decay: float = 0.01
    step_decay: float = 0.8
    """Weight of draft step s is this to the power s."""
    clip: float = 1.0
    average_every: int = 8
    """Batches between two averages of the weights, where several processes train (torchrun)."""
    hold_out_every: int = 33
    """One conversation of so many is held out."""
    product_dtype: str = "bfloat16"
    """Of the matrix products; the weights themselves stay float32."""
    fit_rows: int = 40_000
    """Rows of the closed-form start."""
    seed: int = 0


def learning_rate(spent: float, options: TrainOptions) -> float:
    """Warm-up, then a cosine down to a fiftieth, by the share of the time that is `spent`."""
    if spent < options.warmup:
        return options.learning_rate * max(0.01, spent / options.warmup)
    share = min(1.0, (spent - options.warmup) / (1 - options.warmup))
    return options.learning_rate * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)
