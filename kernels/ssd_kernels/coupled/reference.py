"""Torch reference; any device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_kernels.philox import exponential_noise
from ssd_kernels.truncation import Cut


def coupled_sample(
    logits: Tensor,
    temperature: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
    domain: int,
    rounds: Sequence[int],
    cut: Cut | None,
) -> Tensor:
    """See :func:`ssd_kernels.coupled.coupled_sample`."""
    V = logits.shape[1]
    scores = scaled_logits(logits, temperature)
    noise = exponential_noise(seeds, positions, V, domain=domain, rounds=rounds, device=logits.device, backend="torch")
    greedy = torch.tensor([t == 0 for t in temperature], device=logits.device)[:, None]
    scores = torch.where(greedy, scores, scores - noise.log())
    usable = scores > -math.inf  # also false for NaN
    if cut is not None:
        ids = torch.arange(V, device=logits.device)
        tied = (logits.float() == cut.value[:, None]) & (ids <= cut.last[:, None])
        usable &= (logits.float() > cut.value[:, None]) | tied
    best, winners = scores.masked_fill(~usable, -math.inf).max(-1)
    return winners.masked_fill(best == -math.inf, -1)


def scaled_logits(logits: Tensor, temperature: Sequence[float]) -> Tensor:
    """(l - max l) / T, float32; l - max l in greedy rows. The peak goes first: rounding does not grow as T falls."""
    values = logits.float()
    divisors = torch.tensor([t or 1.0 for t in temperature], device=logits.device)[:, None]
    return (values - values.amax(-1, keepdim=True)) / divisors
