"""Training an MTP layer: what is trained is what an engine drafts with."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from replicas.config import SpeculativeConfig
from replicas.training.distillation import DistillOptions, agreement, train
from replicas.training.mtp import MtpModule, write_layer
from replicas.training.padded_batches import PaddedBatch, padded_batches
from tests.reference.hand_built_engine import TinyTarget
from tests.reference.k_policies import FixedK
from tests.reference.proposals import assert_proposals
from tests.reference.tiny_checkpoints import HIDDEN
from tests.replicas.training.tiny_shards import MARKER, write_shard


class ScaleOnly(nn.Module):
    """An RMS norm that does not norm, so that the fit's own objective can be computed."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, states: Tensor) -> Tensor:
        return states * self.weight


def test_states_and_labels_by_draft_position(
    tmp_path: Path, tiny_folder: Path, tiny_reference: LlamaForCausalLM
) -> None:
    write_shard(tmp_path, 0, tiny_reference)
    (batch, *_) = padded_batches([tmp_path / "shard-00000.safetensors"], MARKER, HIDDEN, 3)
    module = MtpModule(tiny_folder, 3)
    with torch.no_grad():
        steps = list(module.drafts(batch))
    # Answers of 13, 16 and 19 tokens; drafting begins one behind the state that gave the first of them.
    assert [len(states) for states, _ in steps] == [45, 42, 39]
    for ahead, (_, wanted) in enumerate(steps, 1):
        ids = batch.tokens[0]
        assert torch.equal(wanted[0], batch.states[0, 6 + ahead]), "the state after the token that was read"
        assert len(ids) > 6 + ahead


def test_the_fit_is_the_least_squares_solution(
    tmp_path: Path, tiny_folder: Path, tiny_reference: LlamaForCausalLM
) -> None:
    """No other projection predicts better; attention and MLP are silent."""
    batches = list(padded_batches([write_shard(tmp_path, 0, tiny_reference)], MARKER, HIDDEN, 3))
    module = MtpModule(tiny_folder, 1)
    module.fit(batches)

    def error() -> float:
        squares = [(states - wanted).square().sum() for batch in batches for states, wanted in raw_drafts(batch)]
        return float(torch.stack(squares).sum())

    def raw_drafts(batch: PaddedBatch) -> Iterator[tuple[Tensor, Tensor]]:
        for states, wanted in module.drafts(batch):
            yield states / module.norm.weight, wanted / module.norm.weight

    with torch.no_grad():
        module.norm = ScaleOnly(module.norm.weight)
        least = error()
        for seed in range(5):
            generator = torch.Generator().manual_seed(seed)
            step = 0.02 * torch.randn(module.eh_proj.weight.shape, generator=generator)
            module.eh_proj.weight.add_(step)
            assert error() > least
            module.eh_proj.weight.sub_(step)


def test_training_helps_and_an_engine_drafts_what_was_trained(
    tmp_path: Path, tiny_folder: Path, tiny_target: TinyTarget, tiny_reference: LlamaForCausalLM
) -> None:
    shards = [write_shard(tmp_path, index, tiny_reference) for index in range(2)]
    module = MtpModule(tiny_folder, 2)
    module.fit(padded_batches(shards, MARKER, HIDDEN, 3))
    fitted = module.eh_proj.weight.detach().clone()
    before = agreement(module, padded_batches(shards, MARKER, HIDDEN, 3))
    options = DistillOptions(steps=60, conversations=3, label_rows=40, learning_rate=3e-3, product_dtype="float32")
    losses = train(module, shards, MARKER, HIDDEN, options)
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    assert not torch.equal(module.eh_proj.weight, fitted)
    after = agreement(module, padded_batches(shards, MARKER, HIDDEN, 3))
    assert [late > early + 0.2 for late, early in zip(after, before, strict=True)] == [True, True]

    write_layer(tmp_path / "layer", tiny_folder, module.tensors())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(parameter.half())

    @torch.no_grad()
    def reference(text: tuple[int, ...], count: int) -> tuple[int, ...]:
        tokens = torch.tensor([text])
        states = tiny_reference.model(tokens[:, :-1]).last_hidden_state
        found: list[int] = []
        for _ in range(count):
            embedded = module.enorm(module.embedding(tokens[:, 1:]))
            mixed = module.eh_proj(torch.cat([embedded, module.hnorm(states)], -1))
            state = module.block(inputs_embeds=mixed, use_cache=False).last_hidden_state[:, -1:]
            found.append(int(module.head(module.norm(state[0, 0])).argmax()))
            tokens = torch.cat([tokens, torch.tensor([[found[-1]]])], 1)
            states = torch.cat([states, state], 1)
        return tuple(found)

    speculative = SpeculativeConfig(method="mtp", model=str(tmp_path / "layer"))
    bench = tiny_target.bench(tiny_target.config(), FixedK(3), speculative=speculative)
    assert assert_proposals(bench, {"a": tuple(range(20, 31))}, 8, reference) > 5
