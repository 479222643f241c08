"""The alarm speaks once per fall below the threshold, and not about drafts that are of use."""

from __future__ import annotations

import logging

import pytest

from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.target.alarm import AcceptanceAlarm


def raised(metrics: TargetMetrics) -> float:
    return metrics.registry.get_sample_value("ssd:draft_failures_total", {"reason": "useless"}) or 0.0


def test_speaks_once_until_the_draft_recovers(caplog: pytest.LogCaptureFixture) -> None:
    metrics = TargetMetrics()
    alarm = AcceptanceAlarm(metrics, window=4)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            alarm.observe(5, 0)
        assert raised(metrics) == 0
        for _ in range(9):
            alarm.observe(5, 0)
        assert raised(metrics) == 1
        for _ in range(4):
            alarm.observe(5, 2)
        for _ in range(4):
            alarm.observe(5, 0)
    assert raised(metrics) == 2
    assert [record.message.split()[0] for record in caplog.records] == ["draft_useless"] * 2


def test_is_silent_about_a_weak_draft() -> None:
    metrics = TargetMetrics()
    alarm = AcceptanceAlarm(metrics, window=4)
    for _ in range(40):
        alarm.observe(5, 1)
    assert raised(metrics) == 0
