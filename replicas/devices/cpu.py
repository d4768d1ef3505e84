"""The CPU: eager torch, with FBGEMM's packed fp16 weights where the processor has AVX2."""

import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from replicas.devices.collectives import Collectives, SingleRank
from replicas.devices.device_backend import DeviceState, Elementwise, Executor, Inputs, Linear, Outputs
from replicas.devices.row_invariance import in_sizes, refuse_uneven_elements, silu, uniform_sizes
from replicas.errors import ConfigError

LinearDtype = Literal["float16", "bfloat16", "float32"]


class CpuBackend:
    """Activations in fp32. Weights of linears packed in fp16 (fast: decoding is bound by reading them) or in fp32.

    The packed product accumulates in fp32, so a checkpoint stored in fp16 loses nothing but the order of additions.
    bf16 rounds inputs and outputs of every product: for throughput over a hundred rows, as in generating training data.
    Raises ConfigError where `deterministic` cannot be had (docs/decisions/0009).
    """

    name = "cpu"
    activation_dtype = torch.float32
    attends_in_place = True
    compiles = False

    def __init__(
        self,
        linear_dtype: LinearDtype = "float16",
        num_threads: int | None = None,
        hidden_multiple: int = 1,
        vocab_multiple: int = 1,
        deterministic: bool = False,
        collectives: Collectives | None = None,
    ) -> None:
        self.collectives: Collectives = collectives or SingleRank()
        # Ray sets OMP_NUM_THREADS to the replica's num_cpus; the config decides instead, by default for all cores.
        torch.set_num_threads(num_threads or max(1, len(os.sched_getaffinity(0)) // self.collectives.size))
        self.torch_device = torch.device("cpu")
        self.linear_dtype = linear_dtype
        # A CPU needs no padding; with it, the programs of a device that does can be checked here.
        self.hidden_multiple = hidden_multiple
        self.vocab_multiple = vocab_multiple
        self.deterministic = deterministic
        self.silu: Elementwise = silu if deterministic else functional.silu
        self._uniform_sizes: dict[tuple[int, int, bool], tuple[int, ...]] = {}
        if deterministic:
            # Ordered attention reads blocks where they lie, neighbours or not.
            self.attends_in_place = False
            refuse_uneven_elements()

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        product = self._linear(weight, bias)
        if not self.deterministic:
            return product
        out_size, in_size = weight.shape
        shape = in_size, out_size, bias is not None
        if shape not in self._uniform_sizes:
            self._uniform_sizes[shape] = uniform_sizes(product, in_size)
            if not self._uniform_sizes[shape]:
                raise ConfigError(
                    f"deterministic: true cannot be had on this processor: with dtype {self.linear_dtype} a row of a "
                    f"{in_size} x {out_size} product depends on how many rows run together; allowed: false"
                )
        return in_sizes(product, self._uniform_sizes[shape])

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        weight = weight.float()
        bias = None if bias is None else bias.float()
        if self.linear_dtype == "float32":
            return float32_linear(weight, bias)
        if self.linear_dtype == "bfloat16":
            weight, bias = weight.bfloat16(), None if bias is None else bias.bfloat16()
            return lambda rows: functional.linear(rows.bfloat16(), weight, bias).float()
        packed: Any = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        product: Any = torch.ops.quantized.linear_dynamic_fp16
        return lambda rows: product(rows, packed)

    def place(self, tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    def executor(self, states: Sequence[DeviceState]) -> Executor:
        return run_eagerly


def float32_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """A product with the weight laid out anew for oneDNN, which reads it once whatever the number of rows.

    `functional.linear` goes to MKL, which on a processor with AVX2 took two to four times as long at 1 to 16 rows
    (docs/decisions/0002), and whose rows differ more with their number.
    """
    if not torch.backends.mkldnn.is_available():
        return lambda rows: functional.linear(rows, weight, bias)
    packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
    product: Any = torch.ops.mkldnn._linear_pointwise
    return lambda rows: product(rows, packed, bias, "none", [], "")


def run_eagerly(key: Hashable, program: Callable[[Inputs], Outputs], inputs: Inputs) -> Outputs:
    """The CPU's Executor: host and device are one, and nothing is compiled (docs/decisions/0026)."""
    return program(inputs)
