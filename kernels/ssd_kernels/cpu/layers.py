"""All layers of a decoder in one call of the compiled functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_kernels.cpu.attention import PagedAttention
from ssd_kernels.cpu.int8 import Int8Layer
from ssd_kernels.cpu.library import CpuKernels
from ssd_kernels.cpu.tiles import TiledLayer

_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Norm:
    """weight: [E], or [H + G, D] for heads, float32, and floor, as ``CpuKernels.add_norm`` takes them."""

    weight: Tensor
    floor: float


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; ``head_norm`` of queries and keys, or None."""

    attention_norm: Norm
    qkv: TiledLayer | Int8Layer
    head_norm: Norm | None
    out: TiledLayer | Int8Layer
    mlp_norm: Norm
    gate_up: TiledLayer | Int8Layer
    down: TiledLayer | Int8Layer

    @property
    def linears(self) -> tuple[TiledLayer | Int8Layer, ...]:
        """In the order in which they run."""
        return self.qkv, self.out, self.gate_up, self.down


class _Linear(ctypes.Structure):
    """``Linear`` in layers.c."""

    _fields_ = (("kind", ctypes.c_int64), ("layer", ctypes.c_void_p), ("outputs", ctypes.c_int64))


class _Part(ctypes.Structure):
    """``Part`` in layers.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("attention_norm", "head_norm", "mlp_norm")),
        *((name, ctypes.c_double) for name in ("attention_floor", "head_floor", "mlp_floor")),
        *((name, _Linear) for name in ("qkv", "out", "gate_up", "down")),
    )


class _Stack(ctypes.Structure):
    """``Stack`` in layers.c."""

    _fields_ = (
        ("parts", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("layers", "width", "heads", "kv_heads", "D", "inner", "int8_bytes")),
        *((name, ctypes.c_int64) for name in ("tiles", "bf16")),
    )


class CompiledLayers:
    """The layers of a decoder between its embedding and its last norm.

    Args:
        kernels: the compiled functions.
        layers: at least one; what their linear layers take and give fits together.
        heads, kv_heads, head_dim: H, G and D.
        dtype: float32 (int8 layers only) or bfloat16.

    Raises:
        ValueError: a bfloat16 layer has a number of inputs that is no multiple of 32, or the dtype is float32.
    """

    def __init__(
        self,
        kernels: CpuKernels,
        layers: Sequence[Layer],
        heads: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> None:
        if not all(self.fits(layer, dtype) for layer in layers):
            raise ValueError("a tiled layer runs in one call with others over a multiple of 32 inputs in bfloat16")
        linears = [linear for layer in layers for linear in layer.linears]
        self._kept = layers
        self._parts = (_Part * len(layers))(*map(_part, layers))
        self._width = len(layers[0].attention_norm.weight)
        self._dtype = dtype
        self._stack = _Stack(
            ctypes.addressof(self._parts),
            len(layers),
            self._width,
            heads,
            kv_heads,
            head_dim,
            layers[0].gate_up.outputs // 2,
            max(linear.row_bytes if isinstance(linear, Int8Layer) else 0 for linear in linears),
            kernels.tiles,
            dtype is torch.bfloat16,
        )
        self._address = ctypes.addressof(self._stack)
        self._run, self._bytes = kernels.layers, kernels.layers_scratch

    @staticmethod
    def fits(layer: Layer, dtype: torch.dtype) -> bool:
        """Whether a layer can run so with the others in ``dtype``."""
        tiled = [linear for linear in layer.linears if isinstance(linear, TiledLayer)]
        return not any(linear.padded for linear in tiled) and (dtype is torch.bfloat16 or not tiled)

    def __call__(self, hidden: Tensor, rotation: Tensor, attention: PagedAttention) -> Tensor:
        """Run all rows through all layers.

        Args:
            hidden: [T, E] float32, contiguous; changed in place.
            rotation: [T, 1, D / 2] complex64, contiguous.
            attention: over the T rows.

        Returns:
            What is still to be added to ``hidden``, [T, E] in the layers' dtype.
        """
        rows = len(hidden)
        delta = torch.empty((rows, self._width), dtype=self._dtype)
        scratch = torch.empty(self._bytes(self._address, rows) + _ALIGNMENT, dtype=torch.uint8)
        self._run(
            self._address,
            hidden.data_ptr(),
            rotation.data_ptr(),
            attention.address,
            delta.data_ptr(),
            -(-scratch.data_ptr() // _ALIGNMENT) * _ALIGNMENT,
            rows,
            torch.get_num_threads(),
        )
        return delta


def _part(layer: Layer) -> _Part:
    norms = (layer.attention_norm, layer.head_norm, layer.mlp_norm)
    return _Part(
        *(None if norm is None else norm.weight.data_ptr() for norm in norms),
        *(0.0 if norm is None else norm.floor for norm in norms),
        *(_Linear(isinstance(linear, Int8Layer), linear.address, linear.outputs) for linear in layer.linears),
    )
