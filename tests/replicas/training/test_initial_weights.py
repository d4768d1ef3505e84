"""The closed-form start."""

import torch
from safetensors.torch import save_file

from replicas.models.checkpoint import Checkpoint
from replicas.training.initial_weights import fit_next_state, initialise
from replicas.training.shards import Conversation, pack
from tests.replicas.training import tiny


def linear_world(rank: int):
    """Conversations whose next final state is linear in taps and embedding, the latter at `rank`."""
    generator = torch.Generator().manual_seed(7)
    embedding = torch.nn.functional.rms_norm(tiny.embedding(), (tiny.HIDDEN,))
    of_taps = torch.randn(tiny.HIDDEN, 3 * tiny.HIDDEN, generator=generator) / 9
    left, right = (torch.randn(tiny.HIDDEN, rank, generator=generator) for _ in range(2))
    of_embedding = left @ right.T / 9
    conversations: list[Conversation] = []
    for seed in range(40):
        conversation = tiny.conversation(30, 5, seed)
        states = conversation.states.float()
        for p in range(len(states) - 1):
            states[p + 1, 72:] = of_taps @ states[p, :72] + of_embedding @ embedding[conversation.tokens[p + 1]]
        conversations.append(Conversation(conversation.tokens, states, 1, 5))
    return conversations, embedding, of_taps, of_embedding


def test_the_fit_recovers_a_linear_world():
    conversations, embedding, of_taps, of_embedding = linear_world(tiny.HIDDEN)
    fit = fit_next_state(conversations, embedding, tiny.config(), 10_000)
    torch.testing.assert_close(fit.of_taps / fit.tap_scale, of_taps, atol=0.01, rtol=0.02)
    # Of the embedding only what 40 tokens span can be known: compare what it predicts.
    torch.testing.assert_close(embedding @ fit.of_embedding.T, embedding @ of_embedding.T, atol=0.03, rtol=0.03)


def test_a_started_head_predicts_the_next_state_where_attention_is_on_itself(tmp_path):
    # Two KV heads of 4 carry rank 8.
    conversations, embedding, _, _ = linear_world(8)
    wide = torch.randn(32, tiny.HIDDEN)
    save_file(
        {"model.layers.5.mlp.gate_proj.weight": wide, "model.layers.5.mlp.up_proj.weight": wide.clone()},
        tmp_path / "model.safetensors",
    )
    head, vocab = tiny.random_head(16), tiny.some_vocab(16)
    fit = fit_next_state(conversations, embedding, tiny.config(), 10_000)
    with Checkpoint(tmp_path) as target, torch.no_grad():
        for norm in (head.midlayer.input_layernorm, head.midlayer.hidden_norm):
            norm.weight.fill_(1.0)
        initialise(head, fit, target, vocab.target_ids, embedding, state_scale=2.0, seed=0)
        assert head.lm_head.weight.equal(embedding[vocab.target_ids])
        batch = pack(conversations[:1], tiny.HIDDEN)
        hidden = head.fuse(batch.taps)
        own = head.midlayer.self_attn.v_proj(head.mix(embedding[batch.next_tokens], hidden)).view(-1, 2, 1, 4)
        attended = torch.cat([own, torch.zeros_like(own), torch.zeros_like(own)], 2).view(-1, 6, 4)
        predicted = head.finish(hidden, attended)
    error = (predicted[1:-1] - batch.final[2:]).pow(2).mean() / batch.final[2:].pow(2).mean()
    # What is left comes from the small random part of v_proj that reads the state.
    assert float(error) < 0.05
