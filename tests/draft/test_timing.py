"""The step time model against forwards of known cost."""

from __future__ import annotations

import random

import pytest
from support.toy_draft import FakeClock, ToyRunner, settings

from ssd_cluster.draft.calibration import calibrate
from ssd_cluster.draft.timing import StepTimer


def test_empty_model_predicts_nothing() -> None:
    assert StepTimer().predict(10) == 0.0


def test_line_is_found_and_followed() -> None:
    timer, rng = StepTimer(), random.Random(0)
    for _ in range(100):
        rows = rng.randrange(1, 40)
        timer.observe(rows, 0.005 + 0.0002 * rows)
    assert timer.predict(10) == pytest.approx(0.007)
    for _ in range(400):
        rows = rng.randrange(1, 40)
        timer.observe(rows, 0.002 + 0.0004 * rows)
    assert timer.model.base_us == pytest.approx(2000, rel=0.05)
    assert timer.model.per_row_us == pytest.approx(400, rel=0.05)


def test_slope_survives_steps_of_one_size() -> None:
    timer = StepTimer()
    for rows in (1, 32):
        timer.observe(rows, 0.005 + 0.0002 * rows)
    for _ in range(1000):
        timer.observe(8, 0.005 + 0.0002 * 8)
    assert timer.predict(108) == pytest.approx(0.0266, rel=0.05)


def test_falling_times_do_not_make_a_negative_slope() -> None:
    timer = StepTimer()
    timer.observe(1, 0.01)
    timer.observe(30, 0.005)
    assert timer.model.per_row_us == 0
    assert timer.predict(1000) > 0


def test_calibration_measures_and_leaves_nothing_behind() -> None:
    clock = FakeClock()
    runner = ToyRunner(clock, base_s=0.004, row_s=0.0005)
    timer = StepTimer()
    before = runner.pool.n_free, runner.tails.n_free
    calibrate(runner, timer, settings(), clock)
    assert timer.predict(20) == pytest.approx(0.014)
    assert (runner.pool.n_free, runner.tails.n_free) == before
