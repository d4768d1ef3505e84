"""The training-time test must train what inference runs."""

from dataclasses import replace

import torch

from replicas.devices.cpu import CpuBackend
from replicas.drafters.drafter import ProposeInput
from replicas.drafters.eagle3 import Eagle3Drafter
from replicas.drafters.eagle3_head import Eagle3Head
from replicas.kv_cache.paged_cache import PagedCache
from replicas.models.vocabulary import Embedding
from replicas.training.export import export_config, export_tensors, write_head
from replicas.training.shards import pack
from replicas.training.unroll import unroll
from tests.reference.eagle3 import NaiveEagle3
from tests.replicas.training import tiny


def reference(head, vocab, embedding):
    """The reference with the head's weights as they are trained, not rounded to fp16."""
    tensors = {name: value.detach() for name, value in head.state_dict().items() if name != "tap_scale"}
    tensors["fc.weight"] = tensors["fc.weight"] / head.tap_scale
    config = export_config(tiny.hf_config(), vocab, (2, 3, 3))
    config |= {"rope_theta": config["rope_parameters"]["rope_theta"]}
    return NaiveEagle3({**tensors, "d2t": vocab.d2t}, config, embedding)


class Scores:
    """Drafts the best token and keeps all scores of every step."""

    def __init__(self, head):
        self.head, self.steps = head, []

    def __call__(self, normed, _label_rows):
        self.steps.append(self.head.lm_head(normed))
        return self.steps[-1].argmax(-1)


def test_every_unrolled_step_equals_the_step_by_step_draft():
    # In float64, so that the bound tests the masks and not the order of additions.
    vocab, head, embedding = tiny.some_vocab(16), tiny.random_head(16).double(), tiny.embedding().double()
    conversations = [tiny.conversation(14, 5, 1), tiny.conversation(9, 3, 2), tiny.conversation(11, 4, 3)]
    batch = pack(conversations, tiny.HIDDEN)
    batch = replace(batch, taps=batch.taps.double())
    naive = reference(head, vocab, embedding)
    origins = [(c, p) for c in conversations for p in range(len(c.tokens) - 1)]
    checked = [0] * 4
    scores = Scores(head)
    for index, step in enumerate(unroll(head, embedding, vocab.draft_ids, batch, 4, scores, hits_only=False)):
        for row, logits in zip(step.chains.tolist(), scores.steps[index], strict=True):
            conversation, start = origins[row]
            tokens = conversation.tokens.tolist()
            taps = conversation.states[: start + 1, : 3 * tiny.HIDDEN]
            expected = naive.logits(taps, tokens[1 : start + 2], index + 1, forced=[*tokens[start + 2 :], 0])
            torch.testing.assert_close(logits, expected[index], atol=1e-5, rtol=1e-5)
            checked[index] += 1
    # Step s of a chain needs s + 2 more tokens: each conversation loses one chain a step.
    assert checked == [8 + 5 + 6, 7 + 4 + 5, 6 + 3 + 4, 5 + 2 + 3]


def test_with_hits_only_a_chain_ends_at_its_first_wrong_draft():
    vocab, head = tiny.some_vocab(16), tiny.random_head(16)
    conversation = tiny.conversation(30, 4, 5)
    naive = reference(head, vocab, tiny.embedding())
    tokens = conversation.tokens.clone()
    # The chain from position 10 is made right twice; its third draft is made wrong.
    taps = conversation.states[:11, : 3 * tiny.HIDDEN]
    drafted = naive.drafts(taps, tokens[1:12].tolist(), 3)
    tokens[12], tokens[13] = drafted[0], drafted[1]
    tokens[14] = (drafted[2] + 1) % tiny.VOCAB
    batch = pack([replace(conversation, tokens=tokens)], tiny.HIDDEN)
    steps = list(unroll(head, tiny.embedding(), vocab.draft_ids, batch, 5, Scores(head)))
    hits = [dict(zip(s.chains.tolist(), s.hits.tolist(), strict=True)).get(10) for s in steps]
    assert hits[:3] == [True, True, False]
    assert all(hit is None for hit in hits[3:])


def test_with_hits_only_no_chain_meets_a_token_that_cannot_be_drafted():
    vocab, head = tiny.some_vocab(16), tiny.random_head(16)
    batch = pack([tiny.conversation(60, 4, seed) for seed in range(4)], tiny.HIDDEN)
    steps = list(unroll(head, tiny.embedding(), vocab.draft_ids, batch, 3, Scores(head)))
    for step in steps:
        assert vocab.t2d[batch.next_tokens[step.label_rows]].all()
    draftable = vocab.t2d[batch.next_tokens[batch.chains + 1]]
    assert steps[0].chains.tolist() == batch.chains[draftable].tolist()
    assert 0 < len(steps[0].chains) < len(batch.chains)


def test_conversations_of_one_batch_do_not_see_each_other():
    vocab, head = tiny.some_vocab(16), tiny.random_head(16)
    first, second = tiny.conversation(12, 4, 1), tiny.conversation(10, 3, 2)

    def logits(*conversations):
        batch = pack(list(conversations), tiny.HIDDEN)
        scores = Scores(head)
        list(unroll(head, tiny.embedding(), vocab.draft_ids, batch, 3, scores, hits_only=False))
        return scores.steps

    together, alone = logits(first, second), logits(second)
    for both, one in zip(together, alone, strict=True):
        torch.testing.assert_close(both[-len(one) :], one, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_inference_drafts_with_the_exported_checkpoint_what_was_trained(tmp_path):
    vocab, head, embedding = tiny.some_vocab(16), tiny.random_head(16), tiny.embedding()
    config = export_config(tiny.hf_config(), vocab, (2, 3, 3))
    write_head(tmp_path, export_tensors(head, vocab), config, {})
    backend = CpuBackend("float32", num_threads=1)
    loaded = Eagle3Head(tmp_path, tiny.config(), Embedding(embedding, backend), backend, 64)
    conversation = tiny.conversation(12, 4, 1)
    taps, tokens = conversation.states[:6, : 3 * tiny.HIDDEN], conversation.tokens[1:7]
    inputs = ProposeInput(
        hidden_states=taps.float(),
        final_states=conversation.states[:6, 3 * tiny.HIDDEN :].float(),
        token_ids=conversation.tokens[None, :6].int(),
        next_token_ids=tokens[None].int(),
        positions=torch.arange(6, dtype=torch.int32)[None],
        last_row=torch.tensor([5], dtype=torch.int32),
        block_tables=torch.tensor([[1, 2, 3]], dtype=torch.int32),
        view=None,
    )
    cache = PagedCache(1, 4, 4, loaded.config.num_kv_heads, loaded.config.head_dim)
    drafts = Eagle3Drafter(loaded, cache).propose(inputs, 5)
    assert drafts[0].tolist() == reference(head, vocab, embedding).drafts(taps, tokens.tolist(), 5)
    assert len(set(drafts[0].tolist())) > 2
