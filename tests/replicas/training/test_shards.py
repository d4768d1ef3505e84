"""Reading and packing of self-written conversations."""

import random

import pytest
import torch

from replicas.errors import CheckpointError
from replicas.training.shards import ShardReader, find_answer, pack, shuffled_batches, split_held_out, worth_learning
from tests.replicas.training import tiny

MARKER = [2, 30, 31]


def with_marker(length: int, at: int, seed: int):
    conversation = tiny.conversation(length, at + len(MARKER), seed)
    conversation.tokens.clamp_(max=29)
    conversation.tokens[at : at + len(MARKER)] = torch.tensor(MARKER)
    return conversation


def test_the_answer_begins_after_the_marker():
    assert find_answer([5, 2, 2, 30, 31, 7, 2, 30, 31], MARKER) == 5
    assert find_answer([5, 2, 30, 7], MARKER) is None


def test_a_reader_finds_answers_and_new_shards(tmp_path):
    first, second = with_marker(12, 3, 1), with_marker(10, 4, 2)
    unanswered = tiny.conversation(5, 1, 3)
    tiny.write_shard(tmp_path / "shard-00000.safetensors", [first, unanswered, second])
    reader = ShardReader(tmp_path, 2, MARKER)
    assert [(c.user_start, c.answer_start) for c in reader.conversations] == [(2, 6), (2, 7)]
    assert reader.num_tokens == 22
    assert reader.conversations[1].tokens.equal(second.tokens)
    assert reader.conversations[1].states.equal(second.states)
    tiny.write_shard(tmp_path / "shard-00001.safetensors", [with_marker(20, 2, 4)])
    reader.refresh()
    reader.refresh()
    assert [len(c.tokens) for c in reader.conversations] == [12, 10, 20]


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"no shard-\*\.safetensors"):
        ShardReader(tmp_path, 2, MARKER)


def test_packed_rows_are_positions_with_state_and_next_token():
    first, second = tiny.conversation(7, 3, 1), tiny.conversation(5, 3, 2)
    batch = pack([first, second], tiny.HIDDEN)
    assert batch.bounds.tolist() == [0, 6, 10]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert batch.next_tokens.tolist() == first.tokens[1:].tolist() + second.tokens[1:].tolist()
    assert batch.taps[6].equal(second.states[0, : 3 * tiny.HIDDEN].float())
    assert batch.final[9].equal(second.states[3, 3 * tiny.HIDDEN :].float())
    # Drafting starts with the state before the answer's first token; the last start still has one token to check.
    assert batch.chains.tolist() == [2, 3, 4, 8]


def test_an_answer_of_one_token_has_nothing_to_draft():
    assert pack([tiny.conversation(6, 5, 1), tiny.conversation(6, 3, 2)], tiny.HIDDEN).chains.tolist() == [7, 8]


def test_training_drafts_in_the_answer_but_little_inside_of_repetitions():
    plain = tiny.conversation(12, 6, 1)
    plain.tokens.copy_(torch.arange(12))
    assert worth_learning(plain).tolist() == list(range(5, 10))
    loop = tiny.conversation(40, 6, 1)
    loop.tokens.copy_(torch.arange(40) % 3)
    # The first draft of start q is token q + 2; runs of 8 tokens repeat from token 11 on, so from start 9 on.
    assert worth_learning(loop).tolist() == [5, 6, 7, 8, 16, 24, 32]


def test_chosen_starts_are_packed():
    conversations = [tiny.conversation(7, 3, 1), tiny.conversation(6, 3, 2)]
    batch = pack(conversations, tiny.HIDDEN, [torch.tensor([1, 4]), torch.tensor([0])])
    assert batch.chains.tolist() == [1, 4, 6]


def test_an_epoch_holds_every_conversation_once_and_new_shards_move_none_across_the_split():
    conversations = [tiny.conversation(12, 4, seed) for seed in range(20)]
    training, held_out = split_held_out(conversations, 5)
    assert held_out == [conversations[i] for i in (0, 5, 10, 15)]
    assert split_held_out([*conversations, *conversations], 5)[1][:4] == held_out
    batches = list(shuffled_batches(training, 20, tiny.HIDDEN, random.Random(0)))
    # From position 3 to 9 of 12: the last start still has a token to check.
    assert all(len(b.chains) == 21 for b in batches[:-1])
    seen = sorted(tuple(row) for b in batches for row in b.final[:, :3].tolist())
    assert seen == sorted(tuple(row) for c in training for row in c.states[:-1, 72:75].float().tolist())
