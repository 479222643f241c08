"""The three laws: published values, exactness against brute force, ceilings."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_cluster.config import FanoutLaw
from ssd_cluster.speculation.fanout import (
    GeometricPlanner,
    MeasuredPlanner,
    UniformPlanner,
    allocate,
    geometric_fanout,
    geometric_weights,
    make_planner,
)
from ssd_cluster.speculation.statistics import OutcomeStatistics, Prior


@pytest.mark.parametrize(
    ("a", "r", "expected"),
    [
        (0.8, 0.5, (4.2, 3.6, 3.1, 2.7, 2.3, 2.0, 1.7, 4.3)),
        (0.7, 0.4, (5.9, 4.5, 3.5, 2.7, 2.1, 1.6, 1.3, 2.3)),
        (0.9, 0.5, (2.8, 2.6, 2.4, 2.3, 2.1, 2.0, 1.8, 8.0)),
    ],
)
def test_theorem_12(a: float, r: float, expected: tuple[float, ...]) -> None:
    law = geometric_fanout(24, 7, a, r)
    assert law == pytest.approx(expected, abs=0.05)
    assert sum(law) == pytest.approx(24)
    scale = a ** (1 / (1 + r))
    f0 = 24 / ((1 - scale**7) / (1 - scale) + scale**7 * (1 - a) ** (-1 / (1 + r)))
    assert law[0] == pytest.approx(f0), "the closed form of F_0"


def every_plan(R: int, ceilings: list[int]) -> itertools.product:
    return (plan for plan in itertools.product(*(range(c + 1) for c in ceilings)) if sum(plan) == min(R, sum(ceilings)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 7), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_allocation_is_optimal_for_falling_gains(R: int, ceilings: list[int], random: object) -> None:
    gains = [sorted((random.random() for _ in range(4)), reverse=True) for _ in ceilings]
    plan = allocate(R, ceilings, lambda k, f: gains[k][f])

    def value(counts: tuple[int, ...]) -> float:
        return sum(sum(gains[k][:count]) for k, count in enumerate(counts))

    assert sum(plan) == min(R, sum(ceilings))
    assert all(count <= most for count, most in zip(plan, ceilings, strict=True))
    assert value(tuple(plan)) == pytest.approx(max(value(p) for p in every_plan(R, ceilings)))


@pytest.mark.parametrize(("R", "K"), [(4, 3), (7, 3), (9, 2), (12, 3)])
@pytest.mark.parametrize("seen", [0, 60])
def test_geometric_integers_minimise_the_misses_of_the_theorem(R: int, K: int, seen: int) -> None:
    prior, statistics = Prior(r=0.5, c=1.0, c_full=1.0), OutcomeStatistics()
    for number in range(seen):
        statistics.observe(K, number % 2)
    weights = geometric_weights(statistics.acceptance, K)

    def misses(plan: tuple[int, ...]) -> float:
        return sum(w * (f**-prior.r if f else math.inf) for w, f in zip(weights, plan, strict=True))

    plan = GeometricPlanner(prior).plan(R, K, statistics)
    assert misses(tuple(plan)) == pytest.approx(min(misses(p) for p in every_plan(R, [R] * (K + 1))))


def test_geometric_with_few_branches_serves_the_likeliest_lengths() -> None:
    statistics = OutcomeStatistics(Prior(acceptance=0.5))
    assert GeometricPlanner(Prior(c_full=1.0, c=1.0)).plan(2, 3, statistics) == [1, 1, 0, 0]


@pytest.mark.parametrize("R", [1, 5, 9])
def test_measured_maximises_the_hit_rate(R: int) -> None:
    K, statistics = 2, OutcomeStatistics()
    for k, rank in [(0, 0), (0, 1), (0, 1), (1, 3), (2, 0), (2, 0), (2, None), (0, None)] * 6:
        statistics.observe(K, k, rank, guesses=4)
    kept = statistics.kept_probabilities(K)
    ranks = [statistics.rank_probabilities(k == K, R) for k in range(K + 1)]

    def hits(plan: tuple[int, ...]) -> float:
        return sum(kept[k] * sum(ranks[k][:f]) for k, f in enumerate(plan))

    plan = MeasuredPlanner().plan(R, K, statistics)
    assert sum(plan) == R
    assert hits(tuple(plan)) == pytest.approx(max(hits(p) for p in every_plan(R, [R] * (K + 1))))


def test_measured_follows_what_it_sees() -> None:
    never, always = OutcomeStatistics(), OutcomeStatistics()
    for _ in range(200):
        never.observe(4, 0, 0, 8)
        always.observe(4, 4, None, 8)
    planner = MeasuredPlanner()
    assert planner.plan(10, 4, never, 8)[0] > planner.plan(10, 4, always, 8)[0]
    assert planner.plan(10, 4, always, 8)[4] == 8


def test_uniform_gives_every_length_the_same() -> None:
    statistics = OutcomeStatistics()
    assert UniformPlanner().plan(12, 3, statistics) == [3, 3, 3, 3]
    assert UniformPlanner().plan(14, 3, statistics) == [4, 4, 3, 3]
    assert UniformPlanner().plan(2, 3, statistics) == [1, 1, 0, 0]


@pytest.mark.parametrize("law", list(FanoutLaw))
def test_every_law_keeps_budget_and_ceilings(law: FanoutLaw) -> None:
    statistics, planner = OutcomeStatistics(), make_planner(law)
    assert planner.plan(16, 0, statistics) == [16], "without a proposal all guesses go to k = 0"
    assert planner.plan(0, 3, statistics) == [0, 0, 0, 0]
    assert planner.plan(50, 3, statistics, 4) == [4, 4, 4, 4]
    assert planner.plan(6, 3, statistics, [0, 9, 0, 9])[::2] == [0, 0]
    assert sum(planner.plan(6, 3, statistics, [0, 9, 0, 9])) == 6
    with pytest.raises(ValueError, match="kept lengths"):
        planner.plan(6, 3, statistics, [1, 2])
