import os

import pytest
import torch

from replicas.devices.cpu import CpuBackend


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linears_multiply_by_the_weight(rows: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight, bias = torch.randn(24, 40, generator=generator), torch.randn(24, generator=generator)
    inputs = torch.randn(rows, 40, generator=generator)

    def product(weight: torch.Tensor) -> torch.Tensor:
        return inputs @ weight.T + (bias if with_bias else 0)

    exact = CpuBackend("float32", 1).linear(weight, bias if with_bias else None)(inputs)
    packed = CpuBackend("float16", 1).linear(weight, bias if with_bias else None)(inputs)
    torch.testing.assert_close(exact, product(weight))
    torch.testing.assert_close(packed, product(weight.half().float()), rtol=1e-5, atol=1e-5)
    assert not torch.equal(packed, exact)


@pytest.mark.parametrize("has_onednn", [True, False])
def test_float32_takes_rows_as_they_lie(has_onednn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: has_onednn)
    generator = torch.Generator().manual_seed(0)
    weight, wide = torch.randn(48, 24, generator=generator).T, torch.randn(6, 96, generator=generator)
    linear = CpuBackend("float32", 1).linear(weight)
    for rows in (wide[:, :48], wide[:, 1::2], wide[:0, :48], wide[:, :48].reshape(2, 3, 48)):
        torch.testing.assert_close(linear(rows), rows @ weight.T)


def test_placed_tensors_are_float32_and_integers_stay() -> None:
    backend = CpuBackend("float16", 1)
    placed = backend.place(torch.tensor([0.1], dtype=torch.float16))
    assert placed.dtype == torch.float32
    assert placed.item() == pytest.approx(0.1, abs=1e-4)
    assert backend.place(torch.tensor([3], dtype=torch.int32)).dtype == torch.int32


def test_the_number_of_threads_is_the_config_s() -> None:
    CpuBackend("float32", 1)
    assert torch.get_num_threads() == 1
    CpuBackend("float32")
    assert torch.get_num_threads() == len(os.sched_getaffinity(0))
