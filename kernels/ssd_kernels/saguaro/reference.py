"""Torch reference; any device."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_kernels.verification.reference import race


def saguaro_sample(q: Tensor, F: int, C: float, E: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.saguaro.saguaro_sample`."""
    best = q.argsort(dim=-1, descending=True, stable=True)[:, :F]
    weights = q.scatter(1, best, C * q.gather(1, best))
    total = weights.sum(-1, keepdim=True)
    nothing = total <= 0
    sigma = torch.where(nothing, q, weights) / torch.where(nothing, q.sum(-1, keepdim=True), total)
    return sigma, race(sigma, E)
