"""Packing penalties, biases and grammars' masks into tensors.

Histories take the bucket's context length, biases one fixed width.
"""

import numpy as np
import torch

from replicas.rejection.adjustments import BiasInputs, LogitAdjustments, PenaltyInputs
from replicas.runner.programs import ProgramKey
from replicas.scheduling.step_plan import SequencePlan
from replicas.scheduling.token_choice import MAX_BIASES


def pack_adjustments(
    parts: tuple[SequencePlan, ...], key: ProgramKey, block_size: int, vocab_size: int
) -> LogitAdjustments | None:
    """What `parts` want changed, padded to the sequences and the context of `key`; None for a program without."""
    variant = key.variant
    biases = _biases(parts, key.batch) if variant.has_biases else None
    length = key.context_blocks * block_size
    penalties = _penalties(parts, key.batch, length) if variant.has_penalties else None
    masks = _masks(parts, key, -(-vocab_size // 32)) if variant.has_masks else None
    if biases is None and penalties is None and masks is None:
        return None
    return LogitAdjustments(biases, penalties, masks)


def _masks(parts: tuple[SequencePlan, ...], key: ProgramKey, words: int) -> torch.Tensor:
    masks = np.full((key.batch, key.choices, words), -1, np.int32)
    for row, part in enumerate(parts):
        for choice, mask in enumerate(part.masks):
            masks[row, choice] = np.frombuffer(mask, "<i4")
    return torch.from_numpy(masks)


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
