"""Adjusted logits against token by token arithmetic in NumPy, at every verified position."""

import math
import random

import numpy as np
import pytest
import torch

from replicas.rejection.adjustments import BiasInputs, LogitAdjustments, PenaltyInputs, adjust
from replicas.request import SamplingParams
from tests.reference.rejection import adjusted

VOCAB = 12
PROMPTS = ((3, 7, 3), (1,), (5, 5, 5, 0))
OUTPUTS = ((7, 7, 9), (), (2, 0))
DRAFTS = ((9, 9, 4), (1, 1, 1), (0, 11, 0))
PENALTIES = ((0.5, 0.25, 1.4), (0.0, 0.0, 1.0), (-1.0, 0.75, 0.6))
"""Presence, frequency, repetition; the second sequence of the batch has none."""
LOGITS = 4 * torch.randn(3 * 4, VOCAB, generator=torch.Generator().manual_seed(1))
POSITIONS = torch.tensor(
    [[len(p) + len(o) + i for i in range(4)] for p, o in zip(PROMPTS, OUTPUTS, strict=True)], dtype=torch.int32
)
DRAFT_IDS = torch.tensor(DRAFTS, dtype=torch.int32)


def penalty_inputs(length: int = 10) -> PenaltyInputs:
    history = torch.full((3, length), -1, dtype=torch.int32)
    for row, (prompt, output) in enumerate(zip(PROMPTS, OUTPUTS, strict=True)):
        history[row, : len(prompt) + len(output)] = torch.tensor(prompt + output)
    presence, frequency, repetition = torch.tensor(PENALTIES).unbind(1)
    counts = torch.tensor([len(prompt) for prompt in PROMPTS], dtype=torch.int32)
    return PenaltyInputs(history, counts, presence, frequency, repetition)


def bias_inputs(entries: list[list[tuple[int, float, int]]], width: int = 6) -> BiasInputs:
    padded = [row + [(0, 0.0, 0)] * (width - len(row)) for row in entries]
    token_ids, values, until = (torch.tensor([[entry[part] for entry in row] for row in padded]) for part in range(3))
    return BiasInputs(token_ids.int(), values.float(), until.int())


def reference(row: int, choice: int, logit_bias: tuple[tuple[int, float], ...] = (), penalised: bool = True) -> object:
    presence, frequency, repetition = PENALTIES[row] if penalised else (0.0, 0.0, 1.0)
    sampling = SamplingParams(
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
        logit_bias=logit_bias,
    )
    output = OUTPUTS[row] + DRAFTS[row][:choice]
    return adjusted(LOGITS[4 * row + choice].double().numpy(), PROMPTS[row], output, sampling, ())


def test_choice_i_counts_the_drafts_before_it() -> None:
    scores = adjust(LOGITS, POSITIONS, DRAFT_IDS, LogitAdjustments(None, penalty_inputs()))
    assert scores.dtype == torch.float32
    for row in range(3):
        for choice in range(4):
            assert scores[4 * row + choice].numpy() == pytest.approx(reference(row, choice), abs=1e-5)


def test_a_sequence_without_penalties_is_left_bit_for_bit() -> None:
    scores = adjust(LOGITS, POSITIONS, DRAFT_IDS, LogitAdjustments(bias_inputs([[], [], []]), penalty_inputs()))
    assert torch.equal(scores[4:8], LOGITS[4:8])
    assert not torch.equal(scores[:4], LOGITS[:4])


def test_padding_of_the_history_changes_nothing() -> None:
    short, long = (
        adjust(LOGITS, POSITIONS, DRAFT_IDS, LogitAdjustments(None, penalty_inputs(length))) for length in (6, 40)
    )
    assert torch.equal(short, long)


def test_a_prompts_only_choice_has_no_drafts() -> None:
    logits, positions = LOGITS[::4], POSITIONS[:, :1]
    scores = adjust(logits, positions, DRAFT_IDS[:, :0], LogitAdjustments(None, penalty_inputs()))
    for row in range(3):
        assert scores[row].numpy() == pytest.approx(reference(row, 0), abs=1e-5)


def test_a_bias_counts_up_to_its_position() -> None:
    # The first sequence's choices are at positions 6 to 9.
    entries = [[(2, 5.0, 2**31 - 1), (4, -math.inf, 8)], [(2, -1.5, 2**31 - 1)], []]
    scores = adjust(LOGITS, POSITIONS, DRAFT_IDS, LogitAdjustments(bias_inputs(entries), None)).view(3, 4, VOCAB)
    wanted = LOGITS.view(3, 4, VOCAB).clone()
    wanted[0, :, 2] += 5.0
    wanted[0, :2, 4] = -math.inf
    wanted[1, :, 2] -= 1.5
    assert torch.equal(scores, wanted)


def test_biases_come_before_penalties() -> None:
    bias = ((7, 6.0), (9, -6.0))
    entries = [[(token, value, 2**31 - 1) for token, value in bias]] * 3
    adjustments = LogitAdjustments(bias_inputs(entries), penalty_inputs())
    scores = adjust(LOGITS, POSITIONS, DRAFT_IDS, adjustments)
    for row in range(3):
        for choice in range(4):
            assert scores[4 * row + choice].numpy() == pytest.approx(reference(row, choice, bias), abs=1e-5)


def test_several_biases_of_one_token_add_up() -> None:
    chance = random.Random(3)
    entries = [[(chance.randrange(3), float(chance.randrange(5)), 2**31 - 1) for _ in range(6)] for _ in range(3)]
    scores = adjust(LOGITS, POSITIONS, DRAFT_IDS, LogitAdjustments(bias_inputs(entries), None)).view(3, 4, VOCAB)
    for row in range(3):
        bias = tuple((token, value) for token, value, _ in entries[row])
        wanted = [reference(row, choice, bias, penalised=False) for choice in range(4)]
        assert scores[row].numpy() == pytest.approx(np.array(wanted), abs=1e-5)


def packed(allowed: set[int], vocabulary: int) -> list[int]:
    """Bit i % 32 of int32 word i // 32 for each token."""
    words = [sum(1 << bit for bit in range(32) if 32 * word + bit in allowed) for word in range(-(-vocabulary // 32))]
    return [word - 2**32 if word >= 2**31 else word for word in words]


@pytest.mark.parametrize("vocabulary", [12, 32, 70])
def test_masks_forbid_what_a_grammar_does_not_allow(vocabulary: int) -> None:
    rng = random.Random(vocabulary)
    logits = torch.randn(12, vocabulary, generator=torch.Generator().manual_seed(2))
    allowed = [[{t for t in range(vocabulary) if rng.random() < 0.4} for _ in range(4)] for _ in range(3)]
    allowed[1][2] = {vocabulary - 1, 31 % vocabulary}
    masks = torch.tensor([[packed(choice, vocabulary) for choice in row] for row in allowed], dtype=torch.int32)
    scores = adjust(logits, POSITIONS, DRAFT_IDS, LogitAdjustments(None, None, masks))
    for row in range(3):
        for choice in range(4):
            tokens = sorted(allowed[row][choice])
            found = scores[4 * row + choice]
            assert torch.isfinite(found).nonzero().flatten().tolist() == tokens
            assert torch.equal(found[tokens], logits[4 * row + choice, tokens])


def test_masks_come_after_biases_and_penalties() -> None:
    biases = bias_inputs([[(4, 100.0, 2**31 - 1)]] * 3)
    masks = torch.tensor([[packed({1, 3}, VOCAB)] * 4] * 3, dtype=torch.int32)
    scores = adjust(LOGITS, POSITIONS, DRAFT_IDS, LogitAdjustments(biases, penalty_inputs(), masks))
    free = adjust(LOGITS, POSITIONS, DRAFT_IDS, LogitAdjustments(biases, penalty_inputs()))
    assert torch.equal(scores[:, [1, 3]], free[:, [1, 3]])
    assert torch.isneginf(scores[:, [0, 2, *range(4, VOCAB)]]).all()
