"""Overwriting rows of a tensor in place: the one way that programs change what outlives them."""

from torch import Tensor


def put_rows(tensor: Tensor, rows: Tensor, values: Tensor) -> None:
    """tensor[rows] = values, for `rows` [count] int32 from 0 on; of rows named twice one or the other value stays.

    In an XLA graph `tensor` must be no view, or all of it is copied, and none made in inference mode.
    """
    if tensor.device.type == "xla":
        from replicas.devices.xla_operations import scatter_rows

        tensor.copy_(scatter_rows(tensor, rows, values))
    else:
        tensor.index_put_((rows,), values)
