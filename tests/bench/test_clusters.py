"""Ratios over prompts: what the estimate is, and that whole prompts are resampled."""

from __future__ import annotations

import numpy as np
import pytest

from ssd_cluster.bench.clusters import Estimate, difference, ratio


def test_a_ratio_weighs_clusters_by_their_size() -> None:
    found = ratio([(30, 10), (10, 10)])
    assert found is not None
    assert found.value == 2.0
    assert (found.low, found.high) == (1.0, 3.0)
    assert ratio([(0, 0)]) is None
    assert ratio([]) is None
    assert ratio([(3, 2)]) == Estimate(1.5)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Prompts differ among themselves; counting every round as independent would give intervals half as wide."""
    random = np.random.default_rng(1)
    covered, widths = 0, []
    for _ in range(200):
        rates = random.normal(2.0, 0.3, 30)
        found = ratio([(50 * rate, 50) for rate in rates])
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 2.0 <= found.high
        widths.append(found.high - found.low)
    assert 0.88 <= covered / 200 <= 0.99
    assert np.mean(widths) == pytest.approx(2 * 1.96 * 0.3 / 30**0.5, rel=0.15)


def test_a_paired_difference_does_not_see_what_both_share() -> None:
    random = np.random.default_rng(2)
    shared = random.normal(2.0, 0.5, 20)
    a = [(10 * (rate + 0.1), 10.0) for rate in shared]
    b = [(10 * rate, 10.0) for rate in shared]
    found = difference(a, b)
    assert found is not None
    assert found.value == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1)
    assert difference([], []) is None
    with pytest.raises(ValueError, match="cannot be paired"):
        difference(a, b[1:])
