"""Root-mean-square normalisation in few operations: with few rows, starting an operation costs more than its work."""

from __future__ import annotations

import torch
from torch import Tensor


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32, returned in the weight's dtype.

    ``weight``: [..., D], broadcast against x [..., D].
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        width = weight.shape[-1]
        self._scaled = weight.float() * width**0.5
        self._dtype = weight.dtype
        self._floor = torch.full((1,), (width * eps) ** 0.5, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).hypot_(self._floor)
        return torch.div(x, length).mul_(self._scaled).to(self._dtype)
