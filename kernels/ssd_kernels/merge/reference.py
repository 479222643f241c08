"""Torch reference, float32 inside; any device."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def merge_state(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.merge.merge_state`."""
    lse = torch.logaddexp(lse_a, lse_b)
    empty = lse == -math.inf
    base = lse.masked_fill(empty, 0.0)
    share_a, share_b = ((part - base).exp().unsqueeze(-1) for part in (lse_a, lse_b))
    # A part without keys may hold anything.
    merged = torch.where(share_a > 0, out_a.float() * share_a, 0.0) + torch.where(share_b > 0, out_b * share_b, 0.0)
    return merged.to(out_a.dtype), lse
