"""Linear layers in bfloat16 by AMX tiles: the weights are read once, in order, as fast as the memory gives them."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.cpu.library import CpuKernels

_OUTPUTS, _INPUTS = 32, 32


class _Layer(ctypes.Structure):
    """``Layer`` in tiles.c."""

    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


class TiledLayer:
    """y = x W^T + b of x [T, in] bfloat16, summed in float32 and rounded once, or not at all.

    A row's sums run over the inputs in one order, so its result does not depend on the rows beside it.

    Attributes:
        outputs: number of outputs.
        address: of the layer, for the compiled functions.
        padded: the number of inputs is no multiple of 32, so x is copied before it is used.
    """

    def __init__(self, kernels: CpuKernels, weight: Tensor, bias: Tensor | None = None) -> None:
        """``weight``: [out, in] bfloat16.

        Raises:
            KernelUnavailable: the processor has no tiles.
            ValueError: the weight is not bfloat16.
        """
        if not kernels.tiles:
            raise KernelUnavailable("this processor has no AMX tiles for bfloat16, or the system does not grant them")
        if weight.dtype is not torch.bfloat16:
            raise ValueError(f"tiled layers are bfloat16, not {weight.dtype}")
        outputs, inputs = weight.shape
        rows, self._missing = -outputs % _OUTPUTS, -inputs % _INPUTS
        self.padded = self._missing > 0
        padded = F.pad(weight, (0, self._missing, 0, rows))
        blocks = padded.view(-1, _OUTPUTS, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()
        added = torch.zeros(outputs) if bias is None else bias.float()
        self._kept = (blocks, F.pad(added, (0, rows)))
        self._layer = _Layer(*(part.data_ptr() for part in self._kept), inputs, outputs)
        self.address = ctypes.addressof(self._layer)
        self.outputs, self._run = outputs, kernels.bf16_linear

    def __call__(self, x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """[T, out] in ``dtype``, bfloat16 or float32."""
        x = F.pad(x, (0, self._missing)) if self._missing else x.contiguous()
        out = torch.empty((x.shape[0], self.outputs), dtype=dtype)
        rows, threads = x.shape[0], torch.get_num_threads()
        self._run(self.address, x.data_ptr(), out.data_ptr(), rows, threads, dtype is torch.bfloat16)
        return out
