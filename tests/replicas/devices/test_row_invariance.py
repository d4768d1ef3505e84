"""Finding row counts whose bits agree, and running products in no others."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices import row_invariance
from replicas.devices.cpu import CpuBackend, LinearDtype
from replicas.devices.device_backend import Linear
from replicas.devices.row_invariance import SIZES, in_sizes, refuse_uneven_elements, silu, uniform_sizes
from replicas.errors import ConfigError

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(24, 40, generator=GENERATOR)


def one_by_one(rows: Tensor) -> Tensor:
    return torch.stack([(row * WEIGHT).sum(-1) for row in rows])


def backwards(rows: Tensor) -> Tensor:
    return torch.stack([(row.flip(0) * WEIGHT.flip(1)).sum(-1) for row in rows])


def like_fbgemm_on_avx2(rows: Tensor) -> Tensor:
    """Blocks of 6 rows, and what is left over by another kernel."""
    return one_by_one(rows) if len(rows) % 6 == 0 else backwards(rows)


def test_sizes_that_agree_are_found() -> None:
    assert not torch.equal(one_by_one(WEIGHT[:6]), backwards(WEIGHT[:6])), "the order of additions shows"
    assert uniform_sizes(one_by_one, 40) == SIZES
    assert uniform_sizes(like_fbgemm_on_avx2, 40) == (6, 12, 24, 48)


def test_a_product_that_depends_on_the_place_has_none() -> None:
    def by_place(rows: Tensor) -> Tensor:
        return torch.where(torch.arange(len(rows))[:, None] == 3, backwards(rows), one_by_one(rows))

    assert uniform_sizes(by_place, 40) == ()


@pytest.mark.parametrize("count", [1, 2, 6, 7, 13, 24, 25, 47, 48, 49, 100, 256])
def test_rows_are_padded_and_split(count: int) -> None:
    calls: list[int] = []

    def product(rows: Tensor) -> Tensor:
        calls.append(len(rows))
        return like_fbgemm_on_avx2(rows)

    rows = torch.randn(count, 40, generator=GENERATOR)
    assert torch.equal(in_sizes(product, (6, 12, 24, 48))(rows), one_by_one(rows))
    assert set(calls) <= {6, 12, 24, 48}
    assert sum(calls) < count + 24


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("out_size", "in_size"), [(24, 40), (33, 51), (192, 576)])
def test_linears_of_the_mode(out_size: int, in_size: int, with_bias: bool, dtype: LinearDtype, threads: int) -> None:
    weight = torch.randn(out_size, in_size, generator=GENERATOR)
    bias = torch.randn(out_size, generator=GENERATOR) if with_bias else None
    rows = torch.randn(130, in_size, generator=GENERATOR)
    linear = CpuBackend(dtype, threads, deterministic=True).linear(weight, bias)
    whole = linear(rows)
    tolerance = 2e-2 if dtype == "bfloat16" else 1e-4
    default = CpuBackend(dtype, threads).linear(weight, bias)(rows)
    torch.testing.assert_close(whole, default, rtol=tolerance, atol=tolerance)
    for count in (1, 2, 3, 5, 6, 7, 9, 14, 32, 48, 49, 97):
        for first in (0, 1, 33):
            assert torch.equal(linear(rows[first : first + count]), whole[first : first + count])


def test_a_processor_without_such_sizes_is_refused() -> None:
    class Uneven(CpuBackend):
        def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
            product = super()._linear(weight, bias)
            return lambda rows: product(rows) + torch.arange(len(rows))[:, None]

    backend = Uneven("float16", 1, deterministic=True)
    with pytest.raises(ConfigError, match=r"^deterministic: true cannot be had on this processor: with dtype float16 "):
        backend.linear(WEIGHT)


def test_silu_is_silu() -> None:
    values = torch.cat([torch.linspace(-30, 30, 1001), torch.tensor([0.0, -100.0, 100.0, -1000.0])])
    torch.testing.assert_close(silu(values), functional.silu(values), rtol=1e-6, atol=1e-7)


def test_elements_that_depend_on_their_place_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_uneven_elements()

    def uneven(values: Tensor) -> Tensor:
        return functional.silu(values) + (torch.arange(len(values)) == len(values) - 1) * 1e-3

    monkeypatch.setattr(row_invariance, "silu", uneven)
    with pytest.raises(ConfigError, match="silu of a number depends on its place"):
        CpuBackend("float16", 1, deterministic=True)
