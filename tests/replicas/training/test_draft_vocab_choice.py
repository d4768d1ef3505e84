"""Choice of the draft vocabulary."""

import torch

from replicas.training.draft_vocab_choice import DraftVocab, most_widespread
from replicas.training.shards import Conversation


def written(tokens: list[int], answer_start: int) -> Conversation:
    return Conversation(torch.tensor(tokens), torch.zeros(len(tokens), 4), 0, answer_start)


def test_the_tokens_of_answers_come_first():
    vocab = most_widespread([written([9, 9, 9, 5, 5, 7, 7, 7], 3), written([8, 9, 6], 2)], size=3, vocab_size=12)
    assert vocab.target_ids.tolist() == [5, 6, 7]


def test_a_token_that_one_answer_repeats_counts_once():
    loop = written([1, *[4] * 50], 1)
    others = [written([1, 6, 8], 1), written([1, 8, 6], 1)]
    assert most_widespread([loop, *others], size=2, vocab_size=12).target_ids.tolist() == [6, 8]


def test_the_lowest_ids_fill_up_what_was_never_seen():
    vocab = most_widespread([written([9, 9, 9, 5], 2)], size=5, vocab_size=12)
    assert vocab.target_ids.tolist() == [0, 1, 2, 5, 9]


def test_the_maps_agree():
    vocab = DraftVocab(torch.tensor([1, 4, 5, 11]), vocab_size=12)
    assert vocab.d2t.tolist() == [1, 3, 3, 8]
    assert vocab.t2d.nonzero()[:, 0].tolist() == [1, 4, 5, 11]
    drafts = torch.arange(4)
    assert vocab.draft_ids[drafts + vocab.d2t].equal(drafts)
    assert vocab.draft_ids[~vocab.t2d].eq(-1).all()


def test_coverage_counts_answers_only():
    vocab = DraftVocab(torch.tensor([1, 4]), vocab_size=12)
    assert vocab.coverage([written([1, 1, 4, 7, 1, 1], 2)]) == 0.75
