"""Root-mean-square normalisation in few operations: with few rows, starting an operation costs more than its work."""

from __future__ import annotations

import torch
from torch import Tensor


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, computed in float32, returned in the weight's dtype.

    ``weight``: [..., D], broadcast against x [..., D].

    Attributes:
        scaled: the weight times sqrt(D), float32: what is left to multiply x / sqrt(sum(x^2) + ``floor``) with.
        floor: D * eps.
        dtype: of the result.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        width = weight.shape[-1]
        self.scaled = weight.float() * width**0.5
        self.floor = width * eps
        self.dtype = weight.dtype
        self._root = torch.full((1,), self.floor**0.5, device=weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).hypot_(self._root)
        return torch.div(x, length).mul_(self.scaled).to(self.dtype)
