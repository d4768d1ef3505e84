"""Operations that torch_xla lowers badly, written as HLO. Imported only where torch_xla is."""

from typing import Any

from torch_xla.core import xla_builder, xla_op_registry  # pyright: ignore[reportMissingImports]


def _newer(_: Any, new: Any) -> Any:
    return new


def _scatter_rows(tensor: Any, rows: Any, values: Any) -> Any:
    """A copy of `tensor` with `values` at `rows`. index_put_ would wrap negative rows first, in int64."""
    scalar = xla_builder.Shape.create(tensor.shape().dtype, ())
    newer = xla_builder.create_computation("newer", _newer, [scalar, scalar])
    dimensions = len(tensor.shape().sizes)
    return tensor.scatter(
        rows.reshape([*rows.shape().sizes, 1]),
        values,
        newer,
        update_window_dims=list(range(1, dimensions)),
        inserted_window_dims=[0],
        scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )


scatter_rows: Any = xla_op_registry.register("scatter_rows", _scatter_rows)
