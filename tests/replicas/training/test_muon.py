"""Muon's update."""

import torch

from replicas.training.muon import Muon, orthogonalised


def test_an_update_has_near_unit_singular_values_before_its_scale():
    for shape in ((64, 200), (200, 64)):
        update = orthogonalised(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        singular = torch.linalg.svdvals(update / (0.2 * 200**0.5))
        assert 0.6 < float(singular.min()) and float(singular.max()) < 1.3
        assert abs(float(update.pow(2).mean().sqrt()) - 0.2) < 0.03


def test_wide_slices_are_orthogonalised_apart():
    matrix = torch.randn(400, 500, generator=torch.Generator().manual_seed(0))
    update = orthogonalised(matrix)
    torch.testing.assert_close(update[:192], orthogonalised(matrix[:192]))
    torch.testing.assert_close(update[384:], orthogonalised(matrix[384:]))


def test_it_solves_a_least_squares_problem():
    generator = torch.Generator().manual_seed(0)
    wanted, inputs = torch.randn(8, 6, generator=generator), torch.randn(100, 6, generator=generator)
    weight = torch.nn.Parameter(torch.zeros(8, 6))
    optimizer = Muon([weight], lr=0.1, weight_decay=0.0)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 200)
        optimizer.zero_grad()
        (inputs @ (weight - wanted).T).pow(2).mean().backward()
        optimizer.step()
    torch.testing.assert_close(weight.detach(), wanted, atol=0.1, rtol=0)
