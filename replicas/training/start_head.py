"""Going on from a head that was exported before, perhaps over another draft vocabulary."""

import json
from pathlib import Path
from typing import Any

import torch

from replicas.errors import CheckpointError
from replicas.models.checkpoint import Checkpoint
from replicas.training.draft_vocab_choice import DraftVocab
from replicas.training.head_module import DraftHead


def draft_vocab_of(folder: Path, vocab_size: int) -> DraftVocab:
    """The tokens that the head of `folder` can draft. Raises CheckpointError where it does not say."""
    with Checkpoint(folder) as checkpoint:
        if "d2t" not in checkpoint:
            raise CheckpointError(f"{folder} has no tensor 'd2t': a head to go on from names its draft vocabulary")
        d2t = checkpoint["d2t"]
        return DraftVocab(d2t + torch.arange(len(d2t)), vocab_size)


@torch.no_grad()
def start_from(head: DraftHead, folder: Path, vocab: DraftVocab) -> None:
    """Copy the head of `folder` into `head`, whose `tap_scale` stays and whose draft vocabulary is `vocab`.

    Rows of lm_head are carried over by token. For tokens that are new in `vocab` they are predicted from the rows that
    `head` has (the target's), by the linear map that fits the tokens known to both.
    Raises CheckpointError where a shape differs.
    """
    old_ids = draft_vocab_of(folder, vocab.vocab_size).target_ids
    with Checkpoint(folder) as checkpoint:
        for name, parameter in head.named_parameters():
            if name == "lm_head.weight":
                old_rows = checkpoint.tensor(name, len(old_ids), parameter.shape[1]).float()
                places = vocab.draft_ids[old_ids]
                kept, old_rows = places[places >= 0], old_rows[places >= 0]
                parameter.copy_(parameter @ torch.linalg.lstsq(parameter[kept], old_rows).solution)
                parameter[kept] = old_rows
            else:
                value = checkpoint.tensor(name, *parameter.shape).float()
                parameter.copy_(value * head.tap_scale if name == "fc.weight" else value)


def how_made(folder: Path) -> dict[str, Any] | str:
    """The PROVENANCE.json of the head in `folder`."""
    path = folder / "PROVENANCE.json"
    return json.loads(path.read_text()) if path.exists() else "a head without provenance"
