"""Linear layers behind one seam: eager (any device); packed by oneDNN, tiled (bfloat16) and int8 on CPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
import torch.nn.functional as F
from ssd_kernels.cpu import CpuKernels, Int8Layer, TiledLayer, int8_linear_reference
from torch import Tensor

PACKING_ROWS = 16


class Linear(ABC):
    """y = x W^T + b for x [T, in], W [out, in]."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

    def unrounded(self, x: Tensor) -> Tensor:
        """The same in float32: the sums themselves where a layer can give them, for logits, which tie when rounded."""
        return self(x).float()


LinearFactory = Callable[[Tensor, Tensor | None], Linear]
"""(weight, bias) to a layer."""


class EagerLinear(Linear):
    """``torch.nn.functional.linear``."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)


class PackedLinear(Linear):
    """oneDNN with the weight laid out once for few rows, instead of at every call.

    On one Sapphire Rapids core, 8 rows: the layers of a 135M model take 17 ms instead of 27 ms in bfloat16, with equal
    bits. In float32 a row's result does not change with the number of rows beside it (2 and more), which the plain
    call does not give; a single row is therefore run twice.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, PACKING_ROWS)
        self._bias = bias
        self._pair = weight.dtype == torch.float32
        self._apply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor) -> Tensor:
        alone = self._pair and x.shape[0] == 1
        rows = x.expand(2, -1).contiguous() if alone else x
        y: Tensor = self._apply(rows, self._weight, self._bias, "none", [], "")
        return y[:1] if alone else y


class TiledLinear(Linear):
    """AMX tiles over a weight laid out for them: bfloat16, where the processor has tiles.

    On one Sapphire Rapids core, 1 or 8 rows: the layers of a 135M model and its head take 23 and 24 ms, 31 if oneDNN
    packs them. A row's result does not depend on the rows beside it, which oneDNN does not promise in bfloat16.
    """

    def __init__(self, kernels: CpuKernels, weight: Tensor, bias: Tensor | None = None) -> None:
        self.layer = TiledLayer(kernels, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def unrounded(self, x: Tensor) -> Tensor:
        return self.layer(x, torch.float32)


class Int8Linear(Linear):
    """Weights and rows rounded to 8 bits, sums of integers: another model than the one in the checkpoint, near it.

    Half the memory that a forward over few rows reads. A row's result does not depend on the rows beside it.
    """

    def __init__(self, kernels: CpuKernels, weight: Tensor, bias: Tensor | None = None) -> None:
        self.layer = Int8Layer(kernels, weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.layer(x.contiguous())


def linear_backend(dtype: torch.dtype, device: torch.device) -> type[Linear]:
    """The fastest backend that this build of torch offers for (dtype, device) and that computes the same here."""
    if device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return EagerLinear
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(192, 96, generator=generator).to(dtype)
    bias = torch.randn(192, generator=generator).to(dtype)
    rows = torch.randn(8, 96, generator=generator).to(dtype)
    exact = F.linear(rows, weight, bias)
    try:
        with torch.inference_mode():
            packed = PackedLinear(weight, bias)(rows)
    except (RuntimeError, NotImplementedError):
        return EagerLinear
    tolerance = 0.0 if dtype == torch.bfloat16 else 1e-5
    return PackedLinear if torch.allclose(packed, exact, rtol=tolerance, atol=tolerance) else EagerLinear


def tiles_agree(kernels: CpuKernels) -> bool:
    """Whether the tiled kernel gives what torch gives here, up to rounding, on a small example."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(s, generator=generator).bfloat16() for s in ((35, 70), (40, 70), (40,)))
    exact = F.linear(x.double(), weight.double(), bias.double())
    return torch.allclose(TiledLinear(kernels, weight, bias)(x).double(), exact, rtol=0.01, atol=0.01)


def int8_agrees(kernels: CpuKernels) -> bool:
    """Whether the int8 kernel gives what its reference gives here, on a small example: a compiler can be broken."""
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((13, 70), (40, 70), (40,)))
    ours, reference = Int8Linear(kernels, weight, bias)(x), int8_linear_reference(x, weight, bias)
    return torch.allclose(ours, reference, rtol=1e-5, atol=1e-5)
