"""Training a module to give the target's distribution: batches, loss, agreement, and how the run is recorded."""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import get_cosine_schedule_with_warmup

from replicas.training.padded_batches import PaddedBatch, padded_batches


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """What shapes a run, besides where things lie."""

    steps: int = 400
    conversations: int = 6
    """A batch."""
    label_rows: int = 320
    """Positions of a batch whose distribution is learnt, drawn among the answers': the head dwarfs the layers."""
    learning_rate: float = 3e-4
    hold_out_shards: int = 1
    product_dtype: str = "bfloat16"
    """Of the matrix products; the weights themselves stay float32."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a training."""

    seconds: float
    losses: list[float]
    """Mean over the draft positions, of each step."""
    agreement: list[float]
    """By draft position: how often, on held-out answers, the best token is the target's."""


class Distilled(Protocol):
    """A module with the target's own head."""

    @property
    def head(self) -> nn.Module:
        """States to logits; the target's."""
        ...

    def drafts(self, batch: PaddedBatch) -> Iterator[tuple[Tensor, Tensor]]:
        """By draft position: (normed states, the target's states) [rows, hidden] that should give the same tokens."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """All, frozen ones included."""
        ...


def loss_of(module: Distilled, batch: PaddedBatch, rows: int, order: torch.Generator) -> Tensor:
    """Mean divergence from the target's distribution, over draft positions and `rows` positions of each."""
    losses: list[Tensor] = []
    for states, wanted_states in module.drafts(batch):
        kept = torch.randperm(len(states), generator=order)[:rows]
        with torch.no_grad():
            wanted = module.head(wanted_states[kept]).float().log_softmax(-1)
        drafted = module.head(states[kept]).float().log_softmax(-1)
        losses.append(nn.functional.kl_div(drafted, wanted, log_target=True, reduction="batchmean"))
    return torch.stack(losses).mean()


@torch.inference_mode()
def agreement(module: Distilled, batches: Iterator[PaddedBatch]) -> list[float]:
    """By draft position, the share of rows whose best token is the target's. The tokens before were the target's."""
    right: dict[int, int] = {}
    total: dict[int, int] = {}
    for batch in batches:
        for position, (states, wanted) in enumerate(module.drafts(batch)):
            hits = module.head(states).argmax(-1) == module.head(wanted).argmax(-1)
            right[position] = right.get(position, 0) + int(hits.sum())
            total[position] = total.get(position, 0) + len(hits)
    return [right[position] / max(1, total[position]) for position in sorted(total)]


def train(
    module: Distilled, shards: list[Path], marker: list[int], hidden: int, options: DistillOptions
) -> list[float]:
    """Train `module` in place; the loss of each step."""
    order, rows = random.Random(options.seed), torch.Generator().manual_seed(options.seed)
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, options.steps // 20, options.steps)
    dtype = getattr(torch, options.product_dtype)
    losses: list[float] = []
    with tqdm(total=options.steps, unit="step") as bar:
        while True:
            for batch in padded_batches(order.sample(shards, len(shards)), marker, hidden, options.conversations):
                if len(losses) == options.steps:
                    return losses
                with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                    loss = loss_of(module, batch, options.label_rows, rows)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(learning, 1.0)
                optimizer.step()
                schedule.step()
                losses.append(float(loss.detach()))
                bar.update()
                bar.set_postfix(loss=f"{losses[-1]:.3f}")


def distill(
    module: Distilled,
    held_out: list[Path],
    training: list[Path],
    marker: list[int],
    hidden: int,
    options: DistillOptions,
) -> Run:
    """Train on `training`, measure on `held_out`."""
    began = time.monotonic()
    losses = train(module, training, marker, hidden, options)
    seconds = time.monotonic() - began
    return Run(seconds, losses, agreement(module, padded_batches(held_out, marker, hidden, options.conversations)))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Where things lie, and every field of DistillOptions."""
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--data", type=Path, required=True, help="folder of shards")
    parser.add_argument("--out", type=Path, required=True, help="where the result is written")
    parser.add_argument("--threads", type=int, default=2)
    for name, value in asdict(DistillOptions()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)


def options_of(args: argparse.Namespace) -> DistillOptions:
    """Those that were given."""
    return DistillOptions(**{name: getattr(args, name) for name in asdict(DistillOptions())})


def write_provenance(folder: Path, made_by: str, method: str, options: DistillOptions, run: Run) -> None:
    """PROVENANCE.json: how what lies in `folder` was made. Names no path."""
    pieces = torch.tensor(run.losses).tensor_split(20)
    content: dict[str, Any] = {
        "made_by": made_by,
        "method": method,
        "data": "conversations of the target, written by python -m replicas.training.generate",
        "options": asdict(options),
        "seconds": round(run.seconds),
        "loss": [round(float(piece.mean()), 3) for piece in pieces if len(piece)],
        "held_out_agreement_by_draft_position": [round(share, 4) for share in run.agreement],
        "versions": {"torch": torch.__version__},
    }
    (folder / "PROVENANCE.json").write_text(json.dumps(content, indent=2) + "\n")
    print(f"best tokens that are the target's, on held-out answers, by draft position: {run.agreement}")
