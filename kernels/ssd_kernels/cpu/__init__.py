"""Kernels in C for a CPU that runs few rows at a time; the eager path of the models is their reference."""

from ssd_kernels.cpu.attention import HEAD_MULTIPLE, PagedAttention, Rows
from ssd_kernels.cpu.build import build
from ssd_kernels.cpu.int8 import Int8Layer, int8_linear_reference
from ssd_kernels.cpu.layers import CompiledLayers, Layer, Norm
from ssd_kernels.cpu.library import CpuKernels
from ssd_kernels.cpu.tiles import TiledLayer

__all__ = [
    "HEAD_MULTIPLE",
    "CompiledLayers",
    "CpuKernels",
    "Int8Layer",
    "Layer",
    "Norm",
    "PagedAttention",
    "Rows",
    "TiledLayer",
    "build",
    "int8_linear_reference",
]
