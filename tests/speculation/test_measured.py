"""What a controller measures, piece by piece."""

from __future__ import annotations

import pytest

from ssd_cluster.config import ControllerSettings, SpeculationSettings
from ssd_cluster.speculation.costs import RoundCosts
from ssd_cluster.speculation.drafting import DraftTimes
from ssd_cluster.speculation.ledger import Ledger
from ssd_cluster.speculation.measured import Measured
from ssd_cluster.speculation.planning import Forecast, Plan, best_plan, starting_plan
from ssd_cluster.types import LookupResult


def costs(*plain: tuple[int, float]) -> RoundCosts:
    found = RoundCosts()
    for batch, seconds in plain:
        for at in range(3):
            found.observe_plain(at, batch, seconds)
    return found


def test_one_disturbed_round_does_not_move_the_cost_of_a_plain_one() -> None:
    found = costs((1, 0.03), (1, 0.03))
    found.observe_plain(9.0, 1, 1.5)
    assert found.plain(1) == 0.03


def test_plain_rounds_of_other_batches_lie_on_a_line() -> None:
    found = costs((2, 0.04), (8, 0.10))
    assert found.plain(5) == pytest.approx(0.07)
    assert found.plain(16) == pytest.approx(0.18)
    assert RoundCosts().plain(1) is None
    assert found.plain_known(2, since=0.0)
    assert found.plain_known(10, since=0.0)
    assert not found.plain_known(5, since=0.0)
    assert not found.plain_known(2, since=2.5)


def test_the_cost_of_proposals_is_learnt_and_extended() -> None:
    found = costs((1, 0.03))
    assert found.loaded(1, 6) == pytest.approx(0.03 * 1.075, rel=0.02)
    for at in range(9):
        for n in (1, 3, 4):
            found.observe_loaded(at, 1, n, 0.03 * (1 + 0.1 * (n - 1)))
    assert found.loaded(1, 4) == pytest.approx(0.039, rel=0.03)
    assert found.loaded(1, 6) == pytest.approx(0.045, rel=0.08)
    assert found.loaded_known(1)
    assert not found.loaded_known(4)
    found.forget(1000.0)
    assert not found.loaded_known(1)


def test_a_draft_is_as_slow_as_its_blocks_show() -> None:
    times = DraftTimes()
    times.told(0.002, 0.0001)
    assert times.slowness == 1
    times.observe_trip(0.002)
    times.observe_trip(0.001)
    assert times.round_trip_s == 0.001
    one = (0.002 + 6e-4) + 4 * (0.002 + 1e-3)
    for _ in range(9):
        times.observe_block(0.001 + 3 * one, proposed=5, rows=10, depth=4, sessions=1)
    assert times.slowness == pytest.approx(3)
    assert times.depth(1, 5, 10, 0.001 + 3 * one) == pytest.approx(4)
    for _ in range(24):
        times.observe_late(0.5, proposed=5, rows=10, sessions=1)
    assert times.slowness > 50 * 0.9
    assert times.depth(1, 5, 10, 0.03) < 0


def test_waits_are_measured_apart() -> None:
    times = DraftTimes()
    times.told(0.002, 0.0)
    assert times.wait_s(1, 5) == pytest.approx(0.010)
    for _ in range(5):
        times.observe_wait(0.030, 1, 5)
    assert times.wait_s(1, 5) == pytest.approx(0.030)
    assert times.slowness == 1


def test_the_ledger_bounds_what_is_lost() -> None:
    ledger = Ledger(share=0.02)
    assert not ledger.empty
    spent = plain = 0.0
    for _ in range(100):
        ledger.count(1.0, 1.0, 1.0)
        plain, spent = plain + 1, spent + 1
    while not ledger.empty:
        ledger.count(1.0, 1.5, 1.0)
        plain, spent = plain + 1, spent + 1.5
    assert spent - plain <= 4.5
    for _ in range(1000):
        ledger.count(3.0, 1.0, 1.0)
    assert ledger.balance_s == 4.0, "savings buy no longer losses"


def timed(step_s: float, batches: tuple[int, ...] = (1,)) -> Measured:
    """Plain rounds of 30 ms were seen, and a draft has told what its step takes."""
    measured = Measured()
    for batch in batches:
        for at in range(3):
            measured.costs.observe_plain(at, batch, 0.03)
    measured.drafting.told(step_s, 0.0)
    return measured


def test_measured_hits_correct_the_forecast() -> None:
    measured = timed(0.001)
    plan = Plan(4, 10, wait=False)
    before = Forecast(measured.world, 1).speed(plan)
    for _ in range(64):
        measured.row(4, 3, 4, drafted=True)
        measured.lookup(LookupResult.MISS, n=4, kept=3, rank=None, rows=10)
    assert measured.lookups == measured.drafted == 64
    after = Forecast(measured.world, 1).speed(plan)
    assert after < 0.8 * before
    assert after == pytest.approx(1 / 0.03, rel=0.1)
    measured.restart()
    assert measured.lookups == measured.drafted == 0


def test_a_shorter_chain_is_waited_for_less() -> None:
    measured = timed(0.004)
    for _ in range(64):
        measured.row(6, 1, 2, drafted=True)
        measured.lookup(LookupResult.MISS, n=6, kept=1, rank=None, rows=10)
    plan = Plan(6, 10, wait=True)
    whole = Forecast(measured.world, 1).speed(plan)
    for chain_k in (6, 9):
        measured.chain_k = chain_k
        assert Forecast(measured.world, 1).speed(plan) == whole
    measured.chain_k = 2
    assert Forecast(measured.world, 1).speed(plan) > 1.1 * whole
    measured.chain_k = 1
    assert Forecast(measured.world, 1).speed(plan) > Forecast(measured.world, 1).speed(Plan(6, 10, wait=False))


def test_starting_values_follow_the_times() -> None:
    measured = timed(0.004, batches=(1, 16))
    room = Plan(8, 24, wait=True)
    assert starting_plan(measured.world, room, frozenset(), 1) == Plan(6, 20, wait=True)
    assert starting_plan(measured.world, room, frozenset(), 16) == Plan(6, 10, wait=True)
    assert starting_plan(measured.world, Plan(3, 6, wait=False), frozenset(), 1) == Plan(3, 6, wait=False)
    measured.drafting.told(0.02, 0.0)
    assert starting_plan(measured.world, room, frozenset(), 1).k == 2
    assert starting_plan(measured.world, room, frozenset({"k", "rows"}), 16) == room


def test_the_best_plan_keeps_to_ceilings() -> None:
    measured = timed(0.0001)
    for _ in range(100):
        measured.row(3, 3, 4, drafted=True)
    forecast = Forecast(measured.world, 1)
    assert best_plan(forecast, Plan(3, 12, wait=False), frozenset()).k == 3
    assert not best_plan(forecast, Plan(8, 12, wait=False), frozenset()).wait
    assert best_plan(forecast, Plan(8, 12, wait=True), frozenset({"rows", "wait"})).rows == 12
    assert best_plan(forecast, Plan(8, 0, wait=True), frozenset()).rows == 0


def test_settings_of_the_controller() -> None:
    assert not SpeculationSettings().controller.enabled
    for on in ("on", True, {"enabled": True}):
        assert SpeculationSettings.model_validate({"controller": on}).controller.enabled
    assert not SpeculationSettings.model_validate({"controller": "off"}).controller.enabled
    assert ControllerSettings.model_validate({"fixed": ["k"]}).enabled
    for wrong in ("maybe", {"fixed": ["depth"]}, {"enabled": False, "fixed": ["k"]}, {"fixed": ["k", "rows", "wait"]}):
        with pytest.raises(ValueError, match=r"controller|fixed|Input|choose"):
            SpeculationSettings.model_validate({"controller": wrong})
