"""Acceptance on conversations whose drafts are known."""

import torch

from replicas.training.measure import accepted_counts, greedy_only, measure, walk
from replicas.training.shards import Conversation, pack
from tests.replicas.training import tiny


def successor_head():
    """Drafts t + 1 for each token t of the rows that it sees, mostly the token that it saw most often.

    Queries and keys are zero, so attention is uniform; the value heads carry tokens 0 to 7.
    """
    head = tiny.random_head(tiny.HIDDEN)
    attention, size = head.midlayer.self_attn, head.config.head_dim
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.fill_(0.0 if parameter.dim() > 1 else 1.0)
        for token in range(2 * size):
            group, channel = divmod(token, size)
            attention.v_proj.weight[token, token] = 1.0
            attention.o_proj.weight[token + 1, 3 * group * size + channel] = 1.0
        head.lm_head.weight.copy_(torch.eye(tiny.HIDDEN))
    return head


def test_right_drafts_are_counted_up_to_the_first_wrong_one():
    embedding = torch.eye(tiny.VOCAB, tiny.HIDDEN)
    draft_ids = torch.where(torch.arange(tiny.VOCAB) < tiny.HIDDEN, torch.arange(tiny.VOCAB), -1)
    tokens = torch.tensor([0, 3, 3, 3, 3, 4, 4, 9, 30, 4])
    batch = pack([Conversation(tokens, torch.zeros(10, 4 * tiny.HIDDEN), 1, 3)], tiny.HIDDEN)
    accepted, checkable = accepted_counts(successor_head(), embedding, draft_ids, batch, 3)
    # Every draft is 4. From position 2 on the tokens 3, 4, 4, 9, ... follow those already known.
    assert accepted.tolist() == [0, 2, 1, 0, 0, 1]
    assert checkable.tolist() == [3, 3, 3, 3, 2, 1]


def test_a_walk_skips_what_was_accepted():
    # Steps start at 0 (2 accepted: 3 tokens), 3 (0: 1), 4 (1, K or the end cuts the rest).
    assert walk([2, 0, 0, 0, 1], 3) == (5, 3)
    assert walk([2, 0, 0, 0, 1], 1) == (5, 4)
    assert walk([3, 3, 3, 3], 3) == (4, 1)
    assert walk([], 3) == (0, 0)


def test_measure_joins_the_walks_of_all_conversations():
    head, vocab = tiny.random_head(16), tiny.some_vocab(16)
    conversations = [tiny.conversation(40, 5, seed) for seed in range(20)]
    result = measure(head, tiny.embedding(), vocab.draft_ids, conversations, 3)
    counts = [
        accepted_counts(head, tiny.embedding(), vocab.draft_ids, pack([c], tiny.HIDDEN), 3)[0] for c in conversations
    ]
    joined = torch.cat(counts)
    assert result.first_drafts == 20 * 34 == len(joined)
    assert result.per_position[0] == int((joined > 0).sum()) / len(joined) > 0
    steps = sum(walk(c.tolist(), 3)[1] for c in counts)
    assert result.mean_acceptance_length[2] == len(joined) / steps


def test_only_greedy_answers_are_kept():
    lm_head = torch.eye(tiny.VOCAB, tiny.HIDDEN)
    conversation = tiny.conversation(12, 4, 0)
    final = conversation.states[:, -tiny.HIDDEN :].float()
    greedy = conversation.tokens.clone()
    greedy[4:] = (final[3:-1] @ lm_head.T).argmax(-1)
    sampled = greedy.clone()
    sampled[6] = (sampled[6] + 1) % tiny.VOCAB
    kept = [Conversation(tokens, conversation.states, 1, 4) for tokens in (greedy, sampled)]
    assert greedy_only(kept, lm_head) == kept[:1]
