"""top_k, min_p and top_p on rows of logits: one version for CPUs that avoids sorting the vocabulary, one by full sort.

Both keep the same ids; the second runs on any device and is what the first is tested against. top_k compares logits
(temperature does not change their order), min_p and top_p compare weights exp((l - max l) / T), float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssd_cluster.sampling.selection import Floats, Indices, largest, smallest_mass


@dataclass(frozen=True, slots=True)
class Truncation:
    """Cuts in the order in which they apply; 0, 0 and 1 switch one off."""

    top_k: int = 0
    min_p: float = 0.0
    top_p: float = 1.0


def truncated_law_on_host(logits: Floats, temperature: float, truncation: Truncation, out: Floats) -> None:
    """Law of one row on the CPU.

    Args:
        logits: float32 ``[V]``, -inf where an id is banned.
        temperature: above 0.
        truncation: what to keep.
        out: float32 ``[V]``, overwritten with the law; NaN if the largest logit is not finite.
    """
    vocabulary = logits.shape[0]
    peak = logits.max()
    if not math.isfinite(peak):
        out.fill(math.nan)
        return
    ids: Indices | None = None
    if 0 < truncation.top_k < vocabulary:
        ids = largest(logits, truncation.top_k)
    weights = _weights(logits if ids is None else logits[ids], peak, temperature)
    if truncation.min_p > 0:
        ids, weights = _narrow(ids, weights, np.flatnonzero(weights >= np.float32(truncation.min_p)))
    if truncation.top_p < 1:
        ids, weights = _narrow(ids, weights, smallest_mass(weights, truncation.top_p))
    total = weights.sum(dtype=np.float64)
    if ids is None:
        np.divide(weights, total, out=out, casting="same_kind")
    else:
        out.fill(0.0)
        out[ids] = weights / total


def _weights(logits: Floats, peak: np.float32, temperature: float) -> Floats:
    """exp((l - peak) / T); torch's exponential, which is the same as that of the full-sort version."""
    scaled = torch.from_numpy(logits - peak)
    if temperature != 1:
        scaled.div_(temperature)
    weights: Floats = scaled.exp_().numpy()
    return weights


def _narrow(ids: Indices | None, weights: Floats, keep: Indices) -> tuple[Indices, Floats]:
    return (keep if ids is None else ids[keep]), weights[keep]


def truncated_law(logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """Law of rows by full stable sorts, any device.

    Args:
        logits: float32 ``[n, V]``, -inf where an id is banned.
        temperature: above 0.
        truncation: what to keep.

    Returns:
        float32 ``[n, V]``; NaN rows where the largest logit is not finite.
    """
    vocabulary = logits.shape[1]
    peak = logits.amax(dim=-1, keepdim=True)
    weights = logits.sub(peak)
    if temperature != 1:
        weights.div_(temperature)
    weights.exp_()
    if 0 < truncation.top_k < vocabulary:
        order = logits.argsort(dim=-1, descending=True, stable=True)
        weights.scatter_(1, order[:, truncation.top_k :], 0.0)
    if truncation.min_p > 0:
        weights.masked_fill_(weights < np.float32(truncation.min_p).item(), 0.0)
    if truncation.top_p < 1:
        descending, order = weights.sort(dim=-1, descending=True, stable=True)
        reached = descending.cumsum(dim=-1, dtype=torch.float64)
        goal = truncation.top_p * weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
        # An id stays while what stands before it has not reached the goal.
        dropped = (reached >= goal).roll(1, dims=-1)
        dropped[:, 0] = False
        weights = torch.zeros_like(weights).scatter_(1, order, descending.masked_fill(dropped, 0.0))
    law = weights / weights.sum(dim=-1, keepdim=True, dtype=torch.float64)
    return law.to(torch.float32).masked_fill_(~peak.isfinite(), math.nan)
