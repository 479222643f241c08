"""Torch version by full stable sorts; any device.

Order: top_k, min_p, top_p among what is left. Of equal values the lowest ids stay. Each cut keeps the best so many of
a row, so together they keep what stands before one place of the descending order.
"""

from __future__ import annotations

import torch
from torch import Tensor


def kept_count(descending: Tensor, top_k: Tensor, min_p: Tensor, top_p: Tensor) -> Tensor:
    """How many of each row's largest weights ``[R, V]`` stay, int64 ``[R]``, at least 1; the first weight is 1."""
    V = descending.shape[1]
    ranks = torch.arange(V, device=descending.device)
    keep = ranks < torch.where(top_k > 0, top_k, V)[:, None]
    keep &= descending >= min_p[:, None]
    weights = descending * keep
    goal = top_p[:, None] * weights.sum(-1, keepdim=True, dtype=torch.float64)
    # A place stays while what stands before it has not reached the goal.
    reached = (weights.cumsum(-1, dtype=torch.float64) >= goal).roll(1, dims=-1)
    reached[:, 0] = False
    return (keep & ~(reached & (top_p < 1)[:, None])).sum(-1).clamp(min=1)


def support_cut(
    logits: Tensor, temperature: Tensor, top_k: Tensor, min_p: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor]:
    """(value, id) ``[R]`` of the last that stays; see :func:`ssd_kernels.truncation.support_cut`."""
    descending, order = logits.float().sort(dim=-1, descending=True, stable=True)
    weights = ((descending - descending[:, :1]) / temperature[:, None]).exp()
    last = (kept_count(weights, top_k, min_p, top_p) - 1)[:, None]
    return descending.gather(1, last)[:, 0], order.gather(1, last)[:, 0]


def renormalise(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """See :func:`ssd_kernels.truncation.renormalise`."""
    descending, order = probs.sort(dim=-1, descending=True, stable=True)
    count = kept_count(descending / descending[:, :1], top_k, torch.zeros_like(top_p), top_p)
    ranks = torch.arange(probs.shape[1], device=probs.device)
    kept = torch.where(ranks < count[:, None], descending, 0.0)
    return torch.zeros_like(probs).scatter_(1, order, kept / kept.sum(-1, keepdim=True))
