"""The breaker of a draft replica, on a fake clock."""

from __future__ import annotations

import random

from ssd_cluster.config import BreakerSettings
from ssd_cluster.target.breaker import Breaker, BreakerState


def breaker() -> Breaker:
    return Breaker(BreakerSettings(window=4, late_share=0.5, retry_s=1.0), random.Random(0))


def test_opens_only_when_more_than_the_share_of_a_full_window_is_late() -> None:
    one = breaker()
    assert [one.record(late, 0.0) for late in (True, False, True, False)] == [False] * 4
    assert one.state is BreakerState.CLOSED
    assert one.record(True, 0.0) is False  # window: False True False True
    assert one.record(True, 0.0) is True  # True False True True
    assert one.state is BreakerState.OPEN
    assert not one.admit(0.9)


def test_a_probe_is_let_through_after_the_pause_and_decides() -> None:
    one = breaker()
    one.trip(10.0)
    assert not one.admit(10.99)
    assert one.admit(11.5)
    assert one.state is BreakerState.HALF_OPEN
    assert not one.admit(11.6), "one probe at a time"
    assert one.record(late=True, now=12.0) is True
    assert one.state is BreakerState.OPEN
    assert one.admit(13.5)
    assert one.record(late=False, now=13.6) is False
    assert one.state is BreakerState.CLOSED
    assert one.admit(13.6)


def test_a_probe_that_tells_nothing_makes_room_for_another() -> None:
    one = breaker()
    one.trip(0.0)
    assert one.admit(1.5)
    assert not one.admit(2.0)
    assert one.admit(3.1)


def test_pauses_are_jittered() -> None:
    pauses = set()
    for seed in range(8):
        one = Breaker(BreakerSettings(retry_s=1.0), random.Random(seed))
        one.trip(0.0)
        pauses.add(next(t for t in range(1000, 1501) if one.admit(t / 1000)))
    assert len(pauses) > 4
