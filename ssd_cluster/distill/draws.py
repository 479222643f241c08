"""From logits of many rows to stored laws and drawn tokens, with as few passes over the vocabulary as possible."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_BLOCK = 256


def top_law(logits: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """The ``m`` most probable ids of each row, descending, and their probabilities.

    Args:
        logits: [R, V] float32.
        m: how many, at most V.

    Returns:
        ids [R, m] int64 and p [R, m] float32.
    """
    values, ids = _largest(logits, m)
    best = values[:, :1]
    total = (logits - best).exp_().sum(-1, keepdim=True)
    return ids, (values - best).exp_() / total


def _largest(logits: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """``topk`` by way of the m blocks with the largest maxima: no other block can hold one of the m largest values."""
    R, V = logits.shape
    padded = F.pad(logits, (0, -V % _BLOCK), value=-torch.inf) if V % _BLOCK else logits
    blocks = padded.view(R, -1, _BLOCK)
    if blocks.shape[1] <= m:
        found = logits.topk(m, dim=-1)
        return found.values, found.indices
    chosen = blocks.amax(-1).topk(m, dim=-1).indices
    candidates = blocks.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)
    values, at = candidates.topk(m, dim=-1)
    return values, chosen.gather(1, at // _BLOCK) * _BLOCK + at % _BLOCK


def draw(logits: Tensor, temperatures: Tensor, uniform: Tensor) -> Tensor:
    """One id per row from softmax(logits / T), the argmax where T = 0, by inversion with one uniform number per row.

    Args:
        logits: [R, V] float32.
        temperatures: [R] float32, at least 0.
        uniform: [R] float32 in [0, 1).

    Returns:
        [R] int64.
    """
    best, ids = logits.max(-1)
    temperatures, uniform = temperatures.to(logits.device), uniform.to(logits.device)
    for temperature in sorted({float(t) for t in temperatures.tolist() if t > 0}):
        rows = (temperatures == temperature).nonzero().flatten()
        weights = logits[rows]
        weights -= best[rows, None]
        weights /= temperature
        ids[rows] = _invert(weights.exp_(), uniform[rows])
    return ids


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index at which the cumulated ``weights`` [R, V] pass ``uniform`` [R] times their sum, first by block."""
    R, V = weights.shape
    padded = F.pad(weights, (0, -V % _BLOCK)) if V % _BLOCK else weights
    blocks = padded.view(R, -1, _BLOCK)
    reached = blocks.sum(-1).cumsum(-1)
    wanted = uniform[:, None] * reached[:, -1:]
    block = torch.searchsorted(reached, wanted, right=True).clamp_max(blocks.shape[1] - 1)
    before = torch.where(block > 0, reached.gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = blocks.gather(1, block[..., None].expand(-1, -1, _BLOCK)).squeeze(1).cumsum(-1)
    place = torch.searchsorted(inside, (wanted - before).clamp_min(0.0), right=True)
    last = (inside < inside[:, -1:]).sum(-1, keepdim=True)  # the last place that has weight
    return (block * _BLOCK + torch.minimum(place, last)).squeeze(1).clamp_max(V - 1)
