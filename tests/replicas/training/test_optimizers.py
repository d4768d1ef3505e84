"""Which optimiser moves what."""

import torch

from replicas.training.optimizers import build_optimizers
from replicas.training.options import TrainOptions, learning_rate
from tests.replicas.training import tiny


def test_every_parameter_has_one_optimizer_and_only_the_vocabularys_rows_and_norms_have_adamw():
    head = tiny.random_head(16)
    muon, adamw = build_optimizers(head, TrainOptions())
    name_of = {id(parameter): name for name, parameter in head.named_parameters()}
    groups = [[name_of[id(p)] for g in optimizer.param_groups for p in g["params"]] for optimizer in (muon, adamw)]
    assert sorted(groups[0] + groups[1]) == sorted(name_of.values())
    assert "lm_head.weight" in groups[1]
    assert all("norm" in name or name == "lm_head.weight" for name in groups[1])
    assert isinstance(muon, torch.optim.Muon)
    norms = next(g for g in adamw.param_groups if head.norm.weight in set(g["params"]))
    assert norms["weight_decay"] == 0.0


def test_a_muon_step_turns_a_matrix_evenly_in_all_directions():
    head = tiny.random_head(16)
    weight = head.midlayer.mlp.up_proj.weight
    muon, _ = build_optimizers(head, TrainOptions(learning_rate=0.1, weight_decay=0.0))
    weight.grad = torch.outer(torch.linspace(1, 9, weight.shape[0]), torch.ones(weight.shape[1]))
    weight.grad += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    before = weight.detach().clone()
    muon.step()
    sizes = torch.linalg.svdvals(before - weight.detach())
    # The gradient's largest direction outweighs the smallest more than fifty times, the step's not three times.
    assert float(torch.linalg.svdvals(weight.grad)[0] / torch.linalg.svdvals(weight.grad)[-1]) > 50
    assert float(sizes[0] / sizes[-1]) < 3


def test_the_rate_warms_up_and_falls_along_a_cosine():
    options = TrainOptions(learning_rate=1.0, warmup=0.1)
    rates = [learning_rate(share, options) for share in (0.0, 0.05, 0.1, 0.55, 1.0, 1.5)]
    torch.testing.assert_close(torch.tensor(rates), torch.tensor([0.01, 0.5, 1.0, 0.51, 0.02, 0.02]))
