"""Train an EAGLE3 head on the target's own conversations (see `generate`), by the paper's training-time test.

    python -m replicas.training.train --target FOLDER --data DIR --out DIR --work DIR --minutes 40

Resumable: a checkpoint in the work folder is continued. The learning rate follows the share of --minutes that is
spent, so a run ends on time on any machine; what it saw is written to PROVENANCE.json.
"""

import argparse
import math
import os
import platform
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from tqdm import tqdm
from transformers import AutoTokenizer

from replicas.models.checkpoint import Checkpoint
from replicas.models.registry import target_config
from replicas.models.source import read_hf_config
from replicas.training.draft_vocab_choice import DraftVocab, most_frequent
from replicas.training.export import export_config, export_tensors, write_head
from replicas.training.head_module import DraftHead
from replicas.training.initial_weights import fit_next_state, initialise
from replicas.training.measure import Acceptance, greedy_only, measure
from replicas.training.shards import Conversation, PackedBatch, ShardReader, shuffled_batches, split_held_out
from replicas.training.unroll import unroll
from replicas.training.user_turn import around_user_turn

MEASURED_DRAFTS = 5


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What shapes a run, besides where things lie."""

    minutes: float = 40.0
    """Training time; the learning rate follows the share that is spent."""
    draft_vocab_size: int = 8192
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
    hold_out_every: int = 33
    """One conversation of so many is held out."""
    product_dtype: str = "bfloat16"
    """Of the matrix products; the weights themselves stay float32."""
    fit_rows: int = 40_000
    """Rows of the closed-form start."""
    seed: int = 0


@dataclass(slots=True)
class Progress:
    """What a run has done so far; part of its checkpoint."""

    seconds: float = 0.0
    batches: int = 0
    epochs: int = 0
    drafts: int = 0
    losses: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    """(batches, mean first-step loss since the entry before)."""


class Trainer:
    """One head, its optimiser and the data it learns from."""

    def __init__(self, target: Path, data: Path, options: TrainOptions) -> None:
        self.options = options
        self.hf_config = read_hf_config(target)
        self.config = target_config(target)
        self.reader = ShardReader(data, answer_marker(target))
        with Checkpoint(target) as checkpoint:
            shape = self.config.vocab_size, self.config.hidden_size
            self.embedding = checkpoint.tensor("model.embed_tokens.weight", *shape).float()
            untied = None if self.config.tie_word_embeddings else checkpoint.optional("lm_head.weight", *shape)
            self.target_head = self.embedding if untied is None else untied.float()
            training, _ = self.split()
            self.vocab = most_frequent(training, options.draft_vocab_size, self.config.vocab_size)
            self.head = DraftHead(self.config, len(self.vocab.target_ids))
            fit = fit_next_state(training, self.embedding, self.config, options.fit_rows)
            scale = float(torch.cat([c.states[1:-1, -shape[1] :] for c in training[:64]]).float().pow(2).mean().sqrt())
            initialise(self.head, fit, checkpoint, self.vocab.target_ids, self.target_head, scale, options.seed)
        self.optimizer = build_optimizer(self.head, options)
        self.progress = Progress()
        self.use_vocab(self.vocab)

    def use_vocab(self, vocab: DraftVocab) -> None:
        """Draft over `vocab`."""
        self.vocab, self.draft_ids = vocab, vocab.draft_ids
        self.labels_head = self.target_head[vocab.target_ids]

    def split(self) -> tuple[list[Conversation], list[Conversation]]:
        """(training, held out) conversations of what has been read."""
        return split_held_out(self.reader.conversations, self.options.hold_out_every)

    def batches(self) -> Iterator[PackedBatch]:
        """Epoch after epoch, each over the shards that exist when it begins."""
        while True:
            self.reader.refresh()
            order = random.Random(self.options.seed * 1000 + self.progress.epochs)
            yield from shuffled_batches(self.split()[0], self.options.batch_drafts, self.config.hidden_size, order)
            self.progress.epochs += 1

    def step(self, batch: PackedBatch) -> float:
        """One optimiser step; the mean loss of the first draft step."""
        rate = learning_rate(self.progress.seconds / 60 / self.options.minutes, self.options)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        dtype = getattr(torch, self.options.product_dtype)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss, first = unrolled_loss(
                self.head, self.embedding, self.labels_head, self.draft_ids, batch, self.options
            )
        self.optimizer.zero_grad()
        loss.backward()
        clip_grad_norm_(self.head.parameters(), self.options.clip)
        self.optimizer.step()
        self.progress.batches += 1
        self.progress.drafts += len(batch.chains)
        return first

    def measure(self, conversations: list[Conversation]) -> Acceptance:
        """Held-out acceptance."""
        return measure(self.head, self.embedding, self.draft_ids, conversations, MEASURED_DRAFTS)

    def save(self, path: Path) -> None:
        """Checkpoint to continue from."""
        state = {
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "target_ids": self.vocab.target_ids,
            "progress": asdict(self.progress),
        }
        part = path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, path)

    def load(self, path: Path) -> None:
        """Continue from `path`. The interrupted epoch begins anew."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])
        self.use_vocab(DraftVocab(state["target_ids"], self.config.vocab_size))


def build_optimizer(head: DraftHead, options: TrainOptions) -> torch.optim.Optimizer:
    """AdamW; norms are not decayed."""
    matrices = [p for p in head.parameters() if p.dim() > 1]
    vectors = [p for p in head.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": options.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate(spent: float, options: TrainOptions) -> float:
    """Warm-up, then a cosine down to a fiftieth, by the share of the time that is `spent`."""
    if spent < options.warmup:
        return options.learning_rate * max(0.01, spent / options.warmup)
    share = min(1.0, (spent - options.warmup) / (1 - options.warmup))
    return options.learning_rate * (0.02 + 0.98 * (1 + math.cos(math.pi * share)) / 2)


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
    be drafted are left out. `labels_head` [draft vocabulary, hidden]: the target's rows of the draft vocabulary.
    """
    needed = torch.zeros(int(batch.bounds[-1]), dtype=torch.bool)
    needed[batch.chains + 1] = True
    place = needed.cumsum(0) - 1
    with torch.no_grad():
        wanted = (batch.final[needed] @ labels_head.T).softmax(-1)
    total, first = torch.zeros(()), 0.0
    for index, step in enumerate(unroll(head, embedding, draft_ids, batch, options.unroll_steps, hits_only=True)):
        labels = wanted[place[step.label_rows]]
        losses = step.logits.logsumexp(-1) - (labels * step.logits).sum(-1)
        losses = losses * (draft_ids[batch.next_tokens[step.label_rows]] >= 0)
        total = total + options.step_decay**index * losses.sum() / len(batch.chains)
        if index == 0:
            first = float(losses.detach().mean())
    return total, first


def answer_marker(target: Path) -> list[int]:
    """The tokens that the target's chat template puts between the user's text and the answer."""
    return around_user_turn(AutoTokenizer.from_pretrained(target))[1]


def provenance(trainer: Trainer, acceptance: Acceptance, finished: bool) -> dict[str, Any]:
    """How the head was made, for PROVENANCE.json. Names no path."""
    training, held_out = trainer.split()
    progress = trainer.progress
    return {
        "made_by": "python -m replicas.training.train --target TARGET --data DATA --out OUT --work WORK",
        "method": "EAGLE-3 training-time test (arXiv 2503.01840) on the target's own conversations",
        "data": {
            "written_by": "python -m replicas.training.generate",
            "tokens": trainer.reader.num_tokens,
            "conversations": len(training),
            "held_out_conversations": len(held_out),
            "draft_vocab_coverage_of_held_out_answers": round(trainer.vocab.coverage(held_out), 4),
        },
        "options": asdict(trainer.options),
        "finished": finished,
        "training": {
            "seconds": round(progress.seconds),
            "batches": progress.batches,
            "whole_epochs": progress.epochs,
            "draft_positions": progress.drafts,
            "first_step_loss": [
                [batches, round(loss, 3)] for batches, loss in progress.losses[:: len(progress.losses) // 30 + 1]
            ],
        },
        "held_out_greedy_acceptance": {
            "per_draft_position": [round(share, 4) for share in acceptance.per_position],
            "mean_acceptance_length_at_k": [round(length, 3) for length in acceptance.mean_acceptance_length],
            "draft_positions": acceptance.first_drafts,
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def parse_arguments() -> argparse.Namespace:
    """Command line; every field of TrainOptions is an option."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target")
    parser.add_argument("--data", type=Path, required=True, help="folder of shards")
    parser.add_argument("--out", type=Path, required=True, help="where the head is written")
    parser.add_argument("--work", type=Path, required=True, help="where the checkpoint is kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--export-minutes", type=float, default=10.0, help="time between exports")
    for name, value in asdict(TrainOptions()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def main() -> None:
    """Command line."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    options = TrainOptions(**{name: getattr(args, name) for name in asdict(TrainOptions())})
    args.work.mkdir(parents=True, exist_ok=True)
    checkpoint = args.work / "checkpoint.pt"
    trainer = Trainer(args.target, args.data, options)
    if checkpoint.exists():
        trainer.load(checkpoint)
    held_out = greedy_only(trainer.split()[1], trainer.target_head)
    config = export_config(trainer.hf_config, trainer.vocab, trainer.config.default_tapped_layers)
    progress, recent = trainer.progress, list[float]()
    exported = progress.seconds
    with tqdm(total=round(options.minutes * 60), initial=round(progress.seconds), unit="s") as bar:
        for batch in trainer.batches():
            began = time.monotonic()
            recent.append(trainer.step(batch))
            progress.seconds += time.monotonic() - began
            bar.update(round(progress.seconds) - bar.n)
            bar.set_postfix(batch=progress.batches, loss=f"{recent[-1]:.3f}", epoch=progress.epochs)
            finished = progress.seconds >= options.minutes * 60
            if len(recent) == 25:
                progress.losses.append((progress.batches, sum(recent) / len(recent)))
                recent.clear()
            if finished or progress.seconds - exported >= args.export_minutes * 60:
                exported = progress.seconds
                trainer.save(checkpoint)
                acceptance = trainer.measure(held_out)
                write_head(
                    args.out,
                    export_tensors(trainer.head, trainer.vocab),
                    config,
                    provenance(trainer, acceptance, finished),
                )
                bar.write(f"batch {progress.batches}: {acceptance}")
            if finished:
                return


if __name__ == "__main__":
    main()
