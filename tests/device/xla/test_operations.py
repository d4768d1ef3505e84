"""Operations whose results must be the CPU's, bit for bit or nearly, because tokens depend on them."""

from collections.abc import Callable

import pytest
import torch
import torch_xla
from torch import Tensor
from torch_xla.debug import metrics

from replicas.devices.rows import put_rows
from replicas.devices.selection import argmax, largest
from replicas.devices.xla_neuron import start_runtime
from replicas.rejection.probabilities import filtered_probabilities
from replicas.rejection.sampling import exponential_noise


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def both(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Results on the CPU and on XLA, which must not have gone back to the host."""
    device = start_runtime("xla-cpu")
    metrics.clear_all()
    found = function(*(tensor.to(device) for tensor in inputs))
    torch_xla.sync()
    assert [name for name in metrics.counter_names() if name.startswith("aten::")] == []
    return function(*inputs), found.cpu()


def test_the_noise_of_a_draw_is_the_same() -> None:
    seeds, positions = int32(0, 7, 2**31 - 1, 123_456_789), int32(0, 99, 2047, 131_071)
    wanted, found = both(lambda seeds, positions: exponential_noise(seeds, positions, 5000), seeds, positions)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)


def test_filters_keep_the_same_tokens() -> None:
    logits = torch.randn(6, 500, generator=torch.Generator().manual_seed(1)) * 3
    parameters = (
        torch.tensor([0.5, 1.0, 1.5, 1.0, 0.7, 1.0]),
        int32(5, 0, 3, 0, 1000, 40),
        torch.tensor([1.0, 0.8, 0.9, 1.0, 0.0, 0.95]),
        torch.tensor([0.0, 0.1, 0.0, 0.0, 0.0, 0.02]),
    )
    wanted, found = both(filtered_probabilities, logits, *parameters)
    assert torch.equal(found > 0, wanted > 0)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-9)


def test_of_equal_scores_the_first_is_chosen() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, -1.0], [0.0, 0.0, 0.0, 0.0], [-5.0, -7.0, -5.0, -torch.inf]])
    wanted, found = both(argmax, scores)
    assert found.tolist() == wanted.tolist() == [1, 0, 0]
    assert found.dtype == wanted.dtype == torch.int32


@pytest.mark.parametrize("which", [0, 1])
def test_the_largest_scores(which: int) -> None:
    scores = torch.randn(3, 40, generator=torch.Generator().manual_seed(2))
    wanted, found = both(lambda scores: largest(scores, 20)[which], scores)
    assert torch.equal(found, wanted)
    assert found.dtype == wanted.dtype


@pytest.mark.parametrize("width", [(), (6,), (2, 3)])
def test_rows_are_overwritten(width: tuple[int, ...]) -> None:
    def overwritten(rows: Tensor, values: Tensor) -> Tensor:
        tensor = torch.ones(8, *width, device=rows.device)
        put_rows(tensor, rows, values)
        return tensor

    wanted, found = both(overwritten, int32(5, 0), torch.rand(2, *width))
    assert torch.equal(found, wanted)
    assert (found.view(8, -1) != 1).any(1).nonzero().flatten().tolist() == [0, 5]
