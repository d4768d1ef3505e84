"""Packing penalties and biases into tensors; histories take the bucket's context length, biases one fixed width."""

import numpy as np
import torch

from replicas.rejection.adjustments import BiasInputs, LogitAdjustments, PenaltyInputs
from replicas.runner.programs import ProgramKey
from replicas.scheduling.step_plan import SequencePlan
from replicas.scheduling.token_choice import MAX_BIASES


def pack_adjustments(parts: tuple[SequencePlan, ...], key: ProgramKey, block_size: int) -> LogitAdjustments | None:
    """What `parts` want changed, padded to the sequences and the context of `key`; None for a program without."""
    biases = _biases(parts, key.batch) if key.variant.has_biases else None
    length = key.context_blocks * block_size
    penalties = _penalties(parts, key.batch, length) if key.variant.has_penalties else None
    return None if biases is None and penalties is None else LogitAdjustments(biases, penalties)


def _biases(parts: tuple[SequencePlan, ...], rows: int) -> BiasInputs:
    token_ids = np.zeros((rows, MAX_BIASES), np.int32)
    values = np.zeros((rows, MAX_BIASES), np.float32)
    until = np.zeros((rows, MAX_BIASES), np.int32)
    for row, part in enumerate(parts):
        biases = part.choice.biases
        token_ids[row, : len(biases)] = [bias.token_id for bias in biases]
        values[row, : len(biases)] = [bias.value for bias in biases]
        until[row, : len(biases)] = [bias.until for bias in biases]
    return BiasInputs(torch.from_numpy(token_ids), torch.from_numpy(values), torch.from_numpy(until))


def _penalties(parts: tuple[SequencePlan, ...], rows: int, length: int) -> PenaltyInputs:
    history = np.full((rows, length), -1, np.int32)
    for row, part in enumerate(parts):
        history[row, : len(part.history)] = part.history
    choices = [part.choice for part in parts]
    padding = rows - len(parts)
    return PenaltyInputs(
        history=torch.from_numpy(history),
        num_prompt_tokens=torch.tensor([c.num_prompt_tokens for c in choices] + [0] * padding, dtype=torch.int32),
        presence=torch.tensor([c.presence_penalty for c in choices] + [0.0] * padding),
        frequency=torch.tensor([c.frequency_penalty for c in choices] + [0.0] * padding),
        repetition=torch.tensor([c.repetition_penalty for c in choices] + [1.0] * padding),
    )
