"""How a head was made, for PROVENANCE.json."""

import platform
from dataclasses import asdict
from typing import Any

import torch
import transformers

from replicas.training.measure import Acceptance
from replicas.training.start_head import how_made
from replicas.training.trainer import Trainer


def provenance(trainer: Trainer, acceptance: Acceptance, finished: bool) -> dict[str, Any]:
    """How the head was made, for PROVENANCE.json. Names no path."""
    training, held_out = trainer.split()
    progress = trainer.progress
    start = {"started_from": how_made(trainer.start)} if trainer.start else {}
    return {
        "made_by": "python -m replicas.training.train --target TARGET --data DATA --out OUT --work WORK"
        + (" --from-head HEAD" if start else ""),
        "method": "EAGLE-3 training-time test (arXiv 2503.01840) on the target's own conversations",
        "data": {
            "written_by": [f"{command}: {tokens} tokens" for command, tokens in trainer.reader.written_by.items()],
            "tokens": trainer.reader.num_tokens,
            "conversations": len(training),
            "held_out_conversations": len(held_out),
            "draft_vocab_coverage_of_held_out_answers": round(trainer.vocab.coverage(held_out), 4),
        },
        **start,
        "options": asdict(trainer.options),
        "processes": trainer.peers.processes,
        "finished": finished,
        "training": {
            "seconds": round(progress.seconds),
            "batches_a_process": progress.batches,
            "whole_epochs": progress.epochs,
            "draft_positions_a_process": progress.drafts,
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
