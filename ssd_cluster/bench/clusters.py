"""Ratios over clustered counts: tokens per call, hits per lookup, with intervals that resample whole prompts.

Rounds of one prompt resemble each other, so a prompt is drawn or left out as one (cluster bootstrap, percentiles).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 4000
LEVEL = 0.95

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Counts = Sequence[tuple[float, float]]
"""(numerator, denominator) of each cluster."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its 95 % interval; None with fewer than two clusters."""

    value: float
    low: float | None = None
    high: float | None = None

    def as_json(self) -> dict[str, float | None]:
        return {"value": self.value, "low": self.low, "high": self.high}

    def text(self, form: str = "{:.3f}") -> str:
        """``value [low, high]``."""
        if self.low is None or self.high is None:
            return form.format(self.value)
        return f"{form.format(self.value)} [{form.format(self.low)}, {form.format(self.high)}]"


def ratio(counts: Counts, seed: int = 0) -> Estimate | None:
    """Sum of numerators over sum of denominators; None if nothing was counted."""
    if not counts or sum(d for _, d in counts) <= 0:
        return None
    table = np.array(counts, dtype=np.float64)
    return _estimate(float(_ratio(table.sum(0))), lambda draws: _ratio(table[draws].sum(1)), len(counts), seed)


def difference(counts: Counts, reference: Counts, seed: int = 0) -> Estimate | None:
    """Ratio of ``counts`` less that of ``reference``, cluster by cluster on the same work; None if one is missing.

    Raises:
        ValueError: the two have not the same number of clusters.
    """
    if len(counts) != len(reference):
        raise ValueError(f"{len(counts)} clusters cannot be paired with {len(reference)}")
    if ratio(counts) is None or ratio(reference) is None:
        return None
    a, b = np.array(counts, dtype=np.float64), np.array(reference, dtype=np.float64)
    value = float(_ratio(a.sum(0)) - _ratio(b.sum(0)))
    return _estimate(value, lambda draws: _ratio(a[draws].sum(1)) - _ratio(b[draws].sum(1)), len(counts), seed)


def _ratio(sums: Floats) -> Floats:
    quotients: Floats = sums[..., 0] / np.maximum(sums[..., 1], 1e-300)
    return quotients


def _estimate(value: float, resampled: Callable[[Indices], Floats], clusters: int, seed: int) -> Estimate:
    if clusters < 2:
        return Estimate(value)
    draws = np.random.default_rng(seed).integers(0, clusters, (RESAMPLES, clusters))
    low, high = np.quantile(resampled(draws), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(value, float(low), float(high))
