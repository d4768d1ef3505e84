"""Rows that come out bit for bit the same however many run together: found out when a model is loaded.

Which kernel multiplies a row, and so in which order its products are added, depends on the library, the processor and
the number of rows. Nobody documents it, so it is measured on the very products that will run.
"""

from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.device_backend import Linear
from replicas.errors import ConfigError

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48)
"""Row counts that are tried. More rows are split: 48 rows of any width take a multiple of 64 bytes, so that each call
begins at an aligned address."""


def uniform_sizes(product: Linear, in_size: int) -> tuple[int, ...]:
    """Those of SIZES that give a row the same bits, at every place among the rows; empty if there are none."""
    row = torch.randn(1, in_size, generator=torch.Generator().manual_seed(0))
    results = {size: product(row.expand(size, -1).contiguous()) for size in SIZES}
    expected = results[SIZES[-1]][0]
    if not torch.equal(results[SIZES[-1]], expected.expand_as(results[SIZES[-1]])):
        return ()
    return tuple(size for size, rows in results.items() if torch.equal(rows, expected.expand_as(rows)))


def in_sizes(product: Linear, sizes: tuple[int, ...]) -> Linear:
    """`product`, run over no other row counts than the ascending `sizes`."""

    def padded(rows: Tensor) -> Tensor:
        missing = sizes[bisect_left(sizes, rows.shape[0])] - rows.shape[0]
        return product(functional.pad(rows, (0, 0, 0, missing)))[: rows.shape[0]] if missing else product(rows)

    def split(rows: Tensor) -> Tensor:
        if rows.shape[0] <= sizes[-1]:
            return padded(rows)
        return torch.cat([padded(part) for part in rows.split(sizes[-1])])

    return split


def silu(tensor: Tensor) -> Tensor:
    """SiLU of operations that `refuse_uneven_elements` has seen: torch's own differs at the end of a vector."""
    return tensor / ((-tensor).exp_() + 1.0)


def refuse_uneven_elements() -> None:
    """Raise ConfigError if an elementwise operation gives other bits at the end of a tensor than in its middle.

    Vector code leaves the last elements to scalar code, and threads split a tensor anywhere.
    """
    generator = torch.Generator().manual_seed(0)
    first, second, third = (4 * torch.randn(3, 1 << 14, generator=generator)).unbind()
    operations: dict[str, Callable[[slice], Tensor]] = {
        "exp": lambda part: first[part].exp(),
        "rsqrt": lambda part: first[part].abs().rsqrt(),
        "addcmul": lambda part: torch.addcmul(first[part], second[part], third[part]),
        "silu": lambda part: silu(first[part]),
    }
    for name, operation in operations.items():
        whole = operation(slice(None))
        pieces = torch.cat([operation(slice(begin, begin + 7)) for begin in range(0, len(first), 7)])
        if not torch.equal(whole, pieces):
            raise ConfigError(
                f"deterministic: true cannot be had on this processor: {name} of a number depends on its place in a "
                f"tensor; allowed: false"
            )
