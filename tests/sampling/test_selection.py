"""Partial selections against a full stable sort."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_cluster.sampling.selection import largest, ordered, smallest_mass

TIED = st.builds(
    lambda length, distinct, seed: np.random.default_rng(seed).integers(0, distinct, length).astype(np.float32),
    st.integers(1, 400),
    st.integers(1, 12),
    st.integers(0, 2**32),
)


def by_full_sort(values: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(len(values)), -values.astype(np.float64)))


@settings(max_examples=200, deadline=None)
@given(TIED, st.integers(0, 410))
def test_largest_equals_full_sort(values: np.ndarray, k: int) -> None:
    best = by_full_sort(values)[:k]
    found = largest(values, k)
    assert found.tolist() == sorted(best.tolist())
    assert ordered(values, found).tolist() == best.tolist()


@pytest.mark.parametrize("k", [1, 5, 50, 383, 384, 385, 49151, 49152])
def test_largest_at_a_real_vocabulary(k: int) -> None:
    rng = np.random.default_rng(k)
    for values in (rng.normal(size=49152), rng.normal(size=49152).round(2), np.zeros(49152), np.arange(49152.0)):
        row = values.astype(np.float32)
        assert ordered(row, largest(row, k)).tolist() == by_full_sort(row)[:k].tolist()


def test_largest_with_minus_infinity() -> None:
    row = np.full(200, -np.inf, dtype=np.float32)
    row[150] = 1
    assert largest(row, 2).tolist() == [0, 150]


@settings(max_examples=200, deadline=None)
@given(TIED, st.one_of(st.floats(1e-9, 1.0), st.integers(1, 20).map(lambda n: n / 20)))
def test_smallest_mass_equals_full_sort(values: np.ndarray, share: float) -> None:
    values[0] += 1
    order = by_full_sort(values)
    reached = np.cumsum(values[order].astype(np.float64))
    count = int(np.argmax(reached >= share * float(values.astype(np.float64).sum()))) + 1
    assert smallest_mass(values, share).tolist() == sorted(order[:count].tolist())


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 0.999999, 1 - 1e-10])
def test_smallest_mass_is_smallest_at_a_real_vocabulary(share: float) -> None:
    rng = np.random.default_rng(3)
    for scale in (0.3, 3.0, 8.0):
        weights = np.exp(rng.normal(size=49152) * scale).astype(np.float32)
        kept = smallest_mass(weights, share)
        total = weights.sum(dtype=np.float64)
        mass = weights[kept].sum(dtype=np.float64)
        assert mass >= share * total * (1 - 1e-12)
        assert mass - weights[kept].min() < share * total * (1 + 1e-12)
        assert len(kept) == 49152 or weights[kept].min() >= np.delete(weights, kept).max()
