"""One head, its optimiser and the data it learns from."""

import os
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import clip_grad_norm_
from transformers import AutoTokenizer

from replicas.models.checkpoint import Checkpoint
from replicas.models.registry import target_config
from replicas.models.source import read_hf_config
from replicas.training.averaging import join
from replicas.training.draft_vocab_choice import DraftVocab, most_widespread
from replicas.training.head_module import DraftHead
from replicas.training.initial_weights import fit_next_state, initialise
from replicas.training.measure import Acceptance, measure
from replicas.training.optimizers import build_optimizers
from replicas.training.options import TrainOptions, learning_rate
from replicas.training.shards import Conversation, PackedBatch, ShardReader, shuffled_batches, split_held_out
from replicas.training.start_head import draft_vocab_of, start_from
from replicas.training.unrolled_loss import unrolled_loss
from replicas.training.user_turn import around_user_turn

MEASURED_DRAFTS = 5


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

    def __init__(self, target: Path, data: Path, start: Path | None, options: TrainOptions) -> None:
        """`start`: a head to go on from; without one training begins with a fit in closed form."""
        self.options, self.start = options, start
        self.peers = join()
        self.hf_config = read_hf_config(target)
        self.config = target_config(target)
        prefix, marker = around_user_turn(AutoTokenizer.from_pretrained(target))
        self.reader = ShardReader(data, len(prefix), marker)
        with Checkpoint(target) as checkpoint:
            shape = self.config.vocab_size, self.config.hidden_size
            self.embedding = checkpoint.tensor("model.embed_tokens.weight", *shape).float()
            untied = None if self.config.tie_word_embeddings else checkpoint.optional("lm_head.weight", *shape)
            self.target_head = self.embedding if untied is None else untied.float()
            training, _ = self.split()
            if start and not options.draft_vocab_size:
                self.vocab = draft_vocab_of(start, self.config.vocab_size)
            else:
                self.vocab = most_widespread(training, options.draft_vocab_size, self.config.vocab_size)
            self.head = DraftHead(self.config, len(self.vocab.target_ids))
            fit = fit_next_state(training, self.embedding, self.config, options.fit_rows)
            scale = float(torch.cat([c.states[1:-1, -shape[1] :] for c in training[:64]]).float().pow(2).mean().sqrt())
            initialise(self.head, fit, checkpoint, self.vocab.target_ids, self.target_head, scale, options.seed)
        if start:
            start_from(self.head, start, self.vocab)
        self.optimizers = build_optimizers(self.head, options)
        self.progress = Progress()
        self.use_vocab(self.vocab)

    def use_vocab(self, vocab: DraftVocab) -> None:
        """Draft over `vocab`."""
        self.vocab, self.draft_ids = vocab, vocab.draft_ids
        self.labels_head = self.target_head[vocab.target_ids].to(getattr(torch, self.options.product_dtype))

    def split(self) -> tuple[list[Conversation], list[Conversation]]:
        """(training, held out) conversations of what has been read."""
        return split_held_out(self.reader.conversations, self.options.hold_out_every)

    def batches(self) -> Iterator[PackedBatch]:
        """Epoch after epoch, each over the shards that exist when it begins; of several processes, each its part."""
        while True:
            self.reader.refresh()
            order = random.Random(f"{self.options.seed} {self.progress.batches}")
            shuffled = shuffled_batches(self.split()[0], self.options.batch_drafts, self.config.hidden_size, order)
            yield from islice(shuffled, self.peers.rank, None, self.peers.processes)
            self.progress.epochs += 1

    def step(self, batch: PackedBatch) -> float:
        """One optimiser step; the mean loss of the first draft step."""
        began = time.monotonic()
        rate = learning_rate(self.progress.seconds / 60 / self.options.minutes, self.options)
        for optimizer in self.optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = rate
        dtype = getattr(torch, self.options.product_dtype)
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss, first = unrolled_loss(
                self.head, self.embedding, self.labels_head, self.draft_ids, batch, self.options
            )
        loss.backward()
        clip_grad_norm_(self.head.parameters(), self.options.clip)
        for optimizer in self.optimizers:
            optimizer.step()
        self.progress.batches += 1
        self.progress.drafts += len(batch.chains)
        self.progress.seconds += time.monotonic() - began
        if self.agrees:
            self.progress.seconds = self.peers.average(self.head, self.progress.seconds)
        return first

    @property
    def agrees(self) -> bool:
        """True where all processes have the same weights and clock: only then may a run be saved or end."""
        return self.progress.batches % self.options.average_every == 0

    def measure(self, conversations: list[Conversation]) -> Acceptance:
        """Held-out acceptance."""
        return measure(self.head, self.embedding, self.draft_ids, conversations, MEASURED_DRAFTS)

    def save(self, path: Path) -> None:
        """Checkpoint to continue from."""
        state = {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "target_ids": self.vocab.target_ids,
            "progress": asdict(self.progress),
        }
        part = path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, path)

    def load(self, path: Path) -> None:
        """Continue from `path`. The interrupted epoch begins anew, in another order."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])
        self.use_vocab(DraftVocab(state["target_ids"], self.config.vocab_size))
