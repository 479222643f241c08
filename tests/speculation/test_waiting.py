"""Waiting decisions against the throughput they are meant to maximise."""

from __future__ import annotations

import itertools
import math

import pytest

from ssd_cluster.config import MissPolicy
from ssd_cluster.speculation.waiting import (
    MissSituation,
    WaitEstimator,
    batch_threshold,
    make_policy,
)


def situation(batch: int = 4, missing: int = 1, wait: float = 0.3, **known: float) -> MissSituation:
    values = {"e_hit": 3.5, "e_fallback": 1.2, "p_hit": 0.8} | known
    return MissSituation(batch, missing, wait, **values)


def test_the_rule_maximises_tokens_per_time() -> None:
    rule = make_policy(MissPolicy.RULE)
    decisions = set()
    for batch, wait, e_fallback in itertools.product((1, 2, 4, 8, 16), (0.05, 0.3, 0.9, 2.5), (1.0, 1.8, 3.4)):
        for missing in range(batch + 1):
            waiting = batch * 3.5 / (1 + wait)
            going_on = (batch - missing) * 3.5 + missing * e_fallback
            decided = rule.should_wait(situation(batch, missing, wait, e_fallback=e_fallback))
            assert decided == (waiting > going_on)
            decisions.add(decided)
    assert decisions == {True, False}


def test_the_rule_waits_at_one_row_and_not_at_sixteen() -> None:
    rule = make_policy(MissPolicy.RULE)
    assert rule.should_wait(situation(1, 1))
    assert not rule.should_wait(situation(16, 1))
    assert not rule.should_wait(situation(1, 1, e_fallback=3.5)), "nothing to gain"


def test_constant_policies() -> None:
    assert make_policy(MissPolicy.ALWAYS_WAIT).should_wait(situation(16, 1))
    assert not make_policy(MissPolicy.ALWAYS_WAIT).should_wait(situation(16, 0))
    assert not make_policy(MissPolicy.NEVER_WAIT).should_wait(situation(1, 1))


@pytest.mark.parametrize(("p_hit", "e_miss", "t_backup"), [(0.9, 1.0, 0.5), (0.7, 1.5, 1.2), (0.8, 2.5, 0.1)])
def test_threshold_is_where_both_backups_are_equally_fast(p_hit: float, e_miss: float, t_backup: float) -> None:
    threshold = batch_threshold(p_hit, 3.5, e_miss, t_backup)
    for batch in range(1, 40):
        slow = 3.5 / (1 + (1 - p_hit**batch) * t_backup)
        fast = p_hit * 3.5 + (1 - p_hit) * e_miss
        assert (batch < threshold) == (slow > fast)


def test_threshold_at_its_edges() -> None:
    assert batch_threshold(0.5, 3.0, 1.0, 0.1) == math.inf, "so cheap that any batch waits"
    assert batch_threshold(0.5, 3.0, 3.0, 0.1) == 0, "nothing to gain"
    assert batch_threshold(1.0, 3.0, 1.0, 0.5) == 0, "no misses"
    assert batch_threshold(0.0, 3.0, 1.0, 1.0) == math.inf
    assert batch_threshold(0.0, 3.0, 1.0, 5.0) == 0


def test_threshold_policy_looks_at_the_batch_only() -> None:
    policy = make_policy(MissPolicy.THRESHOLD)
    assert 2 < batch_threshold(0.8, 3.5, 1.2, 0.4) < 3
    for missing in (1, 2, 3):
        assert not policy.should_wait(situation(3, missing, 0.4))
    for missing in (1, 2):
        assert policy.should_wait(situation(2, missing, 0.4))
    assert not policy.should_wait(situation(2, 0, 0.4))


def test_estimates_follow_the_rounds() -> None:
    estimator = WaitEstimator(make_policy(MissPolicy.RULE), 4)
    for _ in range(400):
        estimator.observe_row(drafted=True, tokens=3)
        estimator.observe_row(drafted=False, tokens=1)
        estimator.observe_lookup(hit=False)
        estimator.observe_verify(0.02)
        estimator.observe_wait(0.01)
    seen = estimator.situation(2, 1)
    assert (seen.batch, seen.missing) == (2, 1)
    assert seen.e_hit == pytest.approx(3, abs=0.01)
    assert seen.e_fallback == pytest.approx(1, abs=0.01)
    assert seen.p_hit == pytest.approx(0, abs=0.01)
    assert seen.wait == pytest.approx(0.5)


def test_the_first_miss_waits_and_a_dear_wait_is_tried_again_in_the_end() -> None:
    estimator = WaitEstimator(make_policy(MissPolicy.RULE), 4)
    assert estimator.wait_s is None
    estimator.observe_verify(0.02)
    assert estimator.should_wait(8, 1)
    estimator.observe_wait(2.0)
    refusals = 0
    while not estimator.should_wait(8, 1):
        refusals += 1
        assert refusals < 1000
    assert refusals > 10
    estimator.observe_wait(2.0)
    assert not estimator.should_wait(8, 1), "as dear as before: believed again at once"
    assert estimator.wait_s == pytest.approx(2.0)
    assert not estimator.should_wait(8, 0)
