"""Linear layers with int8 weights for the CPU: half the memory of bfloat16, which is what decoding waits for.

Weights are rounded per output (scale = largest / 127), inputs per row as they come. Products are summed as integers, so
a row's result does not depend on the rows beside it, and is the same on every processor.
"""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_kernels.cpu.library import CpuKernels

MOST_INPUTS = 65536
"""Sums of more products could overflow 32 bits."""

_OUTPUTS, _INPUTS, _ZERO = 32, 64, 128


class _Layer(ctypes.Structure):
    """``Layer`` in int8.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weights", "scales", "excess", "bias")),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


def round_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Integers in [-127, 127] as float32 [..., n] and scales [..., 1], their product near x [..., n]."""
    most = torch.tensor(127.0)  # a tensor: by a number, torch divides in two roundings
    largest = x.float().abs().amax(-1, keepdim=True)
    return (x.float() * torch.where(largest > 0, most / largest, 0.0)).round(), largest / most


class Int8Layer:
    """y = x W^T + b of x [T, in] float32 or bfloat16, in x's dtype.

    Attributes:
        outputs: number of outputs.
        address: of the layer, for the compiled functions.
        row_bytes: scratch memory per row.
    """

    def __init__(self, kernels: CpuKernels, weight: Tensor, bias: Tensor | None = None) -> None:
        """``weight``: [out, in] of any dtype.

        Raises:
            ValueError: it has more than ``MOST_INPUTS`` inputs.
        """
        outputs, inputs = weight.shape
        if inputs > MOST_INPUTS:
            raise ValueError(f"int8 layers have at most {MOST_INPUTS} inputs, not {inputs}")
        integers, scales = round_rows(weight)
        rows, columns = -outputs % _OUTPUTS, -inputs % _INPUTS
        padded = F.pad(integers.to(torch.int8), (0, columns, 0, rows))
        blocks = padded.view(-1, _OUTPUTS, padded.shape[1] // 4, 4).transpose(1, 2).contiguous()
        excess = F.pad(integers.to(torch.int32).sum(1, dtype=torch.int32) * _ZERO, (0, rows))
        added = torch.zeros(outputs) if bias is None else bias.float()
        self._kept = (blocks, F.pad(scales.flatten(), (0, rows)), excess, F.pad(added, (0, rows)))
        self._layer = _Layer(*(part.data_ptr() for part in self._kept), inputs, outputs)
        self.address = ctypes.addressof(self._layer)
        self.outputs, self.row_bytes = outputs, 4 + padded.shape[1]
        self._run, self._tiles = kernels.int8_linear, kernels.tiles

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        out = torch.empty((rows, self.outputs), dtype=x.dtype)
        scratch = torch.empty(rows * self.row_bytes, dtype=torch.uint8)
        in_bf16 = x.dtype is torch.bfloat16
        at, threads = (x.data_ptr(), out.data_ptr(), rows, scratch.data_ptr()), torch.get_num_threads()
        self._run(self.address, *at, threads, self._tiles, in_bf16)
        return out


def int8_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What ``Int8Layer`` computes, in torch."""
    rows, row_scales = round_rows(x)
    columns, column_scales = round_rows(weight)
    y = (rows.double() @ columns.double().T).float() * (column_scales.T * row_scales)
    return (y if bias is None else y + bias.float()).to(x.dtype)
