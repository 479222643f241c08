"""Exact selections on one row of values, without sorting the row: the largest k, and the smallest set of a given mass.

NumPy on the CPU. Every function returns what a full stable sort in descending order, lowest index first among equals,
would return; the tests compare the two. Values must not be NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

BLOCK = 64
"""Values per block of the pre-selection in :func:`largest`."""

MASS_SLACK = 1e-9
"""Share of the total mass that absorbs the rounding of float64 sums over a vocabulary."""


def largest(values: Floats, k: int) -> Indices:
    """Indices, ascending, of the ``k`` largest of ``values`` ``[V]``; equal values: lowest index first.

    The k-th largest of the maxima of blocks is a lower bound of the k-th largest value, so only what reaches it is
    looked at.
    """
    n = values.shape[0]
    if k >= n:
        return np.arange(n, dtype=np.int64)
    if k <= 0:
        return np.empty(0, dtype=np.int64)
    n_blocks = n // BLOCK
    if k > n_blocks // 2:
        return _cut_at_kth(values, k)
    maxima = values[: n_blocks * BLOCK].reshape(BLOCK, n_blocks).max(axis=0)
    floor = np.partition(maxima, n_blocks - k)[n_blocks - k]
    candidates = np.flatnonzero(values >= floor)
    return candidates[_cut_at_kth(values[candidates], k)]


def _cut_at_kth(values: Floats, k: int) -> Indices:
    """As :func:`largest` for 0 < k <= V, by the value of the k-th largest."""
    kth = np.partition(values, values.shape[0] - k)[values.shape[0] - k]
    return _take(values, kth, k)


def _take(values: Floats, cut: np.float32, count: int) -> Indices:
    """All indices above ``cut`` and the first ones equal to it, ``count`` in all, ascending."""
    reach = np.flatnonzero(values >= cut)
    surplus = reach.shape[0] - count
    if surplus == 0:
        return reach
    ties = np.flatnonzero(values[reach] == cut)
    return np.delete(reach, ties[ties.shape[0] - surplus :])


def smallest_mass(weights: Floats, share: float) -> Indices:
    """Indices, ascending, of the smallest set of ``weights`` ``[V]`` whose sum reaches ``share`` of the total.

    Weights (not negative, not all zero) enter in descending order, lowest index first among equals; sums are float64.
    What lies below ``(1 - share) total / V`` cannot belong to the set: all of it together weighs less than what may
    be left out.
    """
    total = float(weights.sum(dtype=np.float64))
    floor = max(0.0, 1.0 - share - MASS_SLACK) * total / weights.shape[0]
    candidates = np.flatnonzero(weights >= floor)
    values = weights[candidates]
    descending = np.sort(values)[::-1]
    reached = np.cumsum(descending, dtype=np.float64)
    count = min(int(np.searchsorted(reached, share * total)) + 1, descending.shape[0])
    return candidates[_take(values, descending[count - 1], count)]


def ordered(values: Floats, indices: Indices) -> Indices:
    """``indices`` (ascending) reordered by descending ``values[indices]``, lowest index first among equals."""
    return indices[np.argsort(-values[indices], kind="stable")]
