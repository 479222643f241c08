"""What a layer does to rows between its linear layers, behind one seam.

``EagerRowOps`` runs on any device and is the reference; ``CompiledRowOps`` (CPU) is one call for up to seven of torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from ssd_kernels.cpu import CpuKernels
from torch import Tensor

from ssd_cluster.model.norm import RMSNorm
from ssd_cluster.model.rope import rotate


class RowOps(ABC):
    """The result of a row does not depend on the rows beside it."""

    @abstractmethod
    def add_norm(self, hidden: Tensor, delta: Tensor | None, norm: RMSNorm) -> Tensor:
        """Add ``delta`` [T, E], if there is one, to hidden [T, E] float32 in place; return norm(hidden)."""

    @abstractmethod
    def rotate(self, heads: Tensor, n_rotated: int, norm: RMSNorm | None, rotation: Tensor) -> None:
        """Of heads [T, N, D] the first ``n_rotated``, in place: normalise, if there is a norm for them, then rotate.

        ``rotation``: [T, 1, D / 2] complex64; see ``rope.rotate``.
        """

    @abstractmethod
    def gate(self, joined: Tensor) -> Tensor:
        """silu(gate) * up, [T, I], of joined [T, 2 * I] = [gate, up]."""


class EagerRowOps(RowOps):
    """Operations of torch. In bfloat16 the gate is rounded twice, as torch's models do it."""

    def add_norm(self, hidden: Tensor, delta: Tensor | None, norm: RMSNorm) -> Tensor:
        if delta is not None:
            hidden += delta
        return norm(hidden)

    def rotate(self, heads: Tensor, n_rotated: int, norm: RMSNorm | None, rotation: Tensor) -> None:
        rotated = heads[:, :n_rotated]
        if norm is not None:
            rotated.copy_(norm(rotated))
        rotate(rotated, rotation)

    def gate(self, joined: Tensor) -> Tensor:
        gate, up = joined.chunk(2, dim=-1)
        return F.silu(gate) * up


class CompiledRowOps(RowOps):
    """Functions of ``ssd_kernels.cpu``: float32 within a function, rounded once at its end."""

    def __init__(self, kernels: CpuKernels) -> None:
        self.kernels = kernels

    def add_norm(self, hidden: Tensor, delta: Tensor | None, norm: RMSNorm) -> Tensor:
        delta = delta if delta is None else delta.contiguous()
        return self.kernels.add_norm(hidden, delta, norm.scaled, norm.floor, norm.dtype)

    def rotate(self, heads: Tensor, n_rotated: int, norm: RMSNorm | None, rotation: Tensor) -> None:
        weight, floor = (None, 0.0) if norm is None else (norm.scaled, norm.floor)
        self.kernels.rotate(heads, n_rotated, rotation, weight, floor)

    def gate(self, joined: Tensor) -> Tensor:
        return self.kernels.gate(joined.contiguous())


def agree(ours: RowOps, reference: RowOps, dtype: torch.dtype) -> bool:
    """Whether two implementations give the same here, on a small example: a compiler can be broken."""
    generator = torch.Generator().manual_seed(0)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    norm, head_norm = (RMSNorm((1 + random(*shape) / 8).to(dtype), 1e-5) for shape in ((72,), (3, 24)))
    hidden, delta, heads = random(3, 72), random(3, 72).to(dtype), random(3, 4, 24).to(dtype)
    joined, rotation = random(3, 72).to(dtype), torch.polar(torch.ones(3, 1, 12), random(3, 1, 12))
    results = []
    for ops in (ours, reference):
        stream, turned, plain = hidden.clone(), heads.clone(), heads.clone()
        normal = ops.add_norm(stream, delta, norm)
        ops.rotate(turned, 3, head_norm, rotation)
        ops.rotate(plain, 3, None, rotation)
        results.append((stream, normal, turned, plain, ops.gate(joined)))
    return all(torch.allclose(a, b, rtol=tolerance, atol=tolerance) for a, b in zip(*results, strict=True))
