"""Packing penalties, biases and masks."""

import math
import struct
from dataclasses import replace

from replicas.rejection.adjustments import LogitAdjustments
from replicas.runner.adjustment_inputs import pack_adjustments
from replicas.runner.programs import ProgramKey, Variant
from replicas.scheduling.step_plan import FOREVER, SequencePlan, TokenBias, TokenChoice
from replicas.scheduling.token_choice import MAX_BIASES

PLAIN = TokenChoice(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
PENALISED = TokenChoice(0.0, 0, 1.0, 0.0, 0, 0.5, -0.25, 1.5, num_prompt_tokens=2)
BIASED = TokenChoice(0.0, 0, 1.0, 0.0, 0, biases=(TokenBias(9, 1.5), TokenBias(4, -math.inf, 17)))


def part(choice: TokenChoice, history: tuple[int, ...] = ()) -> SequencePlan:
    return SequencePlan("a", (1,), 3, 0, None, 0, (1,), choice, history)


def packed_for(
    variant: Variant, parts: tuple[SequencePlan, ...], rows: int, length: int, tokens: int = 1
) -> LogitAdjustments | None:
    return pack_adjustments(parts, ProgramKey(False, rows, tokens, 0, length, variant), block_size=1, vocab_size=64)


def test_nobody_asks() -> None:
    assert packed_for(Variant(), (part(PLAIN), part(PLAIN)), 3, 8) is None


def test_penalties_of_one_of_two_and_a_row_of_padding() -> None:
    packed = packed_for(Variant(has_penalties=True), (part(PLAIN), part(PENALISED, (7, 8, 7))), 3, 5)
    assert packed is not None
    assert packed.biases is None
    penalties = packed.penalties
    assert penalties is not None
    assert penalties.history.tolist() == [[-1] * 5, [7, 8, 7, -1, -1], [-1] * 5]
    assert penalties.num_prompt_tokens.tolist() == [0, 2, 0]
    assert penalties.presence.tolist() == [0.0, 0.5, 0.0]
    assert penalties.frequency.tolist() == [0.0, -0.25, 0.0]
    assert penalties.repetition.tolist() == [1.0, 1.5, 1.0]


def test_biases_have_one_width() -> None:
    packed = packed_for(Variant(has_biases=True), (part(BIASED), part(PLAIN)), 2, 5)
    assert packed is not None
    assert packed.penalties is None
    biases = packed.biases
    assert biases is not None
    for tensor in (biases.token_ids, biases.values, biases.until):
        assert tensor.shape == (2, MAX_BIASES)
    assert biases.token_ids[0, :3].tolist() == [9, 4, 0]
    assert biases.values[0, :3].tolist() == [1.5, -math.inf, 0.0]
    assert biases.until[0, :3].tolist() == [FOREVER, 17, 0]
    assert not biases.values[1].any()


def test_masks_of_one_of_two_sequences_and_fewer_than_choices() -> None:
    first, second = (struct.pack("<2i", *words) for words in ((5, -2), (1, 0)))
    guided = replace(part(PLAIN), masks=(first, second))
    packed = packed_for(Variant(has_masks=True), (part(PLAIN), guided), 3, 5, tokens=4)
    assert packed is not None
    assert (packed.biases, packed.penalties) == (None, None)
    assert packed.masks is not None
    all_of_them = [-1, -1]
    assert packed.masks.tolist() == [
        [all_of_them] * 4,
        [[5, -2], [1, 0], all_of_them, all_of_them],
        [all_of_them] * 4,
    ]


def test_a_program_with_masks_takes_sequences_without() -> None:
    packed = packed_for(Variant(has_masks=True), (), 2, 5)
    assert packed is not None
    assert packed.masks is not None
    assert packed.masks.tolist() == [[[-1, -1]]] * 2
