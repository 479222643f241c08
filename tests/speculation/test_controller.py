"""The control loop against simulated pairs: it must find what pays, leave what does not, and never lose much."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from support.speculation_world import Pair, Simulation, best_fixed, controlled

from ssd_cluster.speculation.controller import Stage
from ssd_cluster.speculation.planning import PLAIN

GARBAGE = {"acceptance": 0.0, "c": 1.0, "r": 0.01}
STEEP = {"round_s": lambda rows, tokens: 0.030 * (1 + 0.10 * (tokens - 1))}
FLAT = {"round_s": lambda rows, tokens: 0.030 * (1 + 0.004 * (tokens - 1))}


def stage_changes(simulation: Simulation) -> list[str]:
    """Stages in order, repetitions left out."""
    stages = [stage for _, stage, _ in simulation.plans]
    return [stage for before, stage in zip([None, *stages], stages, strict=False) if stage != before]


def plan_changes(simulation: Simulation, since: float) -> int:
    plans = [(stage, plan) for at, stage, plan in simulation.plans if at >= since]
    return sum(a != b for a, b in pairwise(plans))


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize(
    "pair",
    [
        Pair(**GARBAGE),
        Pair(**GARBAGE | STEEP),
        Pair(acceptance=0.05, c=0.99),
        Pair(base_s=0.2),
        Pair(one_way_s=0.1),
        Pair(acceptance=0.3, c=0.8, round_s=lambda rows, tokens: 0.030 * (1 + 0.3 * (tokens - 1))),
    ],
    ids=["garbage", "garbage-steep", "hardly-ever", "slow-draft", "far-draft", "too-steep"],
)
def test_what_does_not_pay_costs_at_most_a_twentieth(pair: Pair, batch: int) -> None:
    for seed in range(2):
        simulation = controlled(pair, batch=batch, seed=seed)
        while simulation.rounds < 2000:
            simulation.step()
            if simulation.rounds >= 128:
                assert simulation.now <= 1.05 * simulation.plain_s
        simulation.run(60)
        assert simulation.now <= 1.03 * simulation.plain_s


def test_a_garbage_draft_is_left_within_a_bounded_number_of_rounds() -> None:
    for seed in range(5):
        simulation = controlled(Pair(**GARBAGE), seed=seed)
        while simulation.rounds < 60:
            simulation.step()
        stages = [stage for _, stage, _ in simulation.plans]
        assert "probe" in stages
        assert stages[-1] == "plain"
        assert simulation.controller is not None
        assert simulation.controller.limits(0) == simulation.controller.limits(7)
        assert not simulation.controller.limits(0).attached


def test_probes_come_less_often_while_they_fail() -> None:
    simulation = controlled(Pair(**GARBAGE))
    simulation.run(400)
    starts = [
        at for (_, before, _), (at, stage, _) in pairwise(simulation.plans) if stage == "probe" and before == "plain"
    ]
    pauses = [b - a for a, b in pairwise(starts)]
    assert 3 <= pauses[0] <= 9
    assert all(later > 1.1 * earlier for earlier, later in pairwise(pauses[:4]))
    assert all(40 <= pause <= 80 for pause in pauses[4:])


@pytest.mark.parametrize(
    ("pair", "batch"),
    [
        (Pair(), 1),
        (Pair(acceptance=0.5), 1),
        (Pair(acceptance=0.9, c=0.2), 1),
        (Pair(base_s=0.006), 1),
        (Pair(base_s=0.012), 1),
        (Pair(acceptance=0.6, **STEEP), 1),
        (Pair(**FLAT), 4),
        (Pair(), 16),
        (Pair(**FLAT), 16),
    ],
    ids=["good", "half", "very-good", "slower", "slow", "steep", "flat-4", "good-16", "flat-16"],
)
def test_it_comes_near_the_best_fixed_plan(pair: Pair, batch: int) -> None:
    plan, best = best_fixed(pair, batch=batch)
    simulation = controlled(pair, batch=batch)
    simulation.run(10)
    assert simulation.run(40) >= 0.92 * best, plan


def test_it_follows_the_load() -> None:
    """Worth it alone, not worth it with 16: and back, without waiting for the longest pause."""
    pair = Pair(acceptance=0.6, round_s=lambda rows, tokens: 0.030 * (1 + 0.12 * (tokens - 1)))
    assert best_fixed(pair, batch=16)[0] == PLAIN
    simulation = controlled(pair)
    alone = Simulation(pair, fixed=PLAIN, seed=3).run(20)
    simulation.run(20)
    assert simulation.controller is not None
    assert simulation.controller.stage is Stage.ON
    simulation.batch = 16
    together = Simulation(pair, 16, fixed=PLAIN, seed=3).run(20)
    assert simulation.run(40) >= 0.95 * together
    assert simulation.controller.stage is Stage.PLAIN
    simulation.batch = 1
    simulation.run(5)
    assert simulation.controller.stage is Stage.ON
    assert simulation.run(20) > 1.1 * alone


def test_a_draft_that_becomes_slow_gets_less_to_do() -> None:
    pair = Pair()
    simulation = controlled(pair)
    simulation.run(20)
    before = simulation.plans[-1][2]
    pair.base_s *= 4
    _, best = best_fixed(pair)
    simulation.run(15)
    assert simulation.plans[-1][2].k < before.k
    assert simulation.run(30) >= 0.9 * best
    pair.base_s = 0.5
    plain = Simulation(pair, fixed=PLAIN, seed=3).run(20)
    assert simulation.run(40) >= 0.95 * plain
    assert simulation.controller is not None
    assert simulation.controller.stage is not Stage.ON


def test_noise_does_not_make_it_flap() -> None:
    simulation = controlled(Pair(noise=0.2))
    simulation.run(20)
    since = simulation.now
    simulation.run(120)
    assert stage_changes(simulation) == ["plain", "probe", "on"]
    assert plan_changes(simulation, since) <= 12


def test_noise_around_no_gain_does_not_make_it_flap() -> None:
    """A pair that is worth nothing and costs nothing: whatever is chosen, it is chosen seldom."""
    pair = Pair(acceptance=0.25, c=0.75, noise=0.2, round_s=lambda rows, tokens: 0.030 * (1 + 0.15 * (tokens - 1)))
    simulation = controlled(pair)
    simulation.run(300)
    assert simulation.now <= 1.05 * simulation.plain_s
    assert len(stage_changes(simulation)) <= 40


def test_what_is_fixed_stays() -> None:
    fixed_k = controlled(Pair(**GARBAGE), k=4, fixed=("k",))
    fixed_k.run(20)
    assert {plan.k for _, _, plan in fixed_k.plans} == {4}
    assert {stage for _, stage, _ in fixed_k.plans} == {"on"}
    fixed_rows = controlled(Pair(), rows=7, fixed=("rows", "wait"))
    fixed_rows.run(20)
    later = [plan for at, _, plan in fixed_rows.plans if at > 2]
    assert {(plan.rows, plan.wait) for plan in later} == {(7, True)}
    assert max(plan.k for plan in later) > 1


def test_only_one_request_is_probed_with_and_another_takes_over_when_it_ends() -> None:
    simulation = controlled(Pair(), batch=4)
    controller = simulation.controller
    assert controller is not None
    while controller.stage is not Stage.PROBE:
        simulation.step()
    assert sum(controller.limits(key).attached for key in range(4)) == 1
    probed = next(key for key in range(4) if controller.limits(key).attached)
    others = [(key, 50 + key) for key in range(4) if key != probed]
    controller.decide(simulation.now, 3, others, 100)
    assert controller.limits(max(others)[0]).attached
    assert not controller.limits(probed).attached


def test_without_a_draft_nothing_is_tried() -> None:
    simulation = controlled(Pair())
    controller = simulation.controller
    assert controller is not None
    decide = controller.decide
    controller.decide = lambda now, batch, running, rows: decide(now, batch, running, None)  # type: ignore[method-assign]
    simulation.run(30)
    assert stage_changes(simulation) == ["plain"]


def test_rows_keep_to_what_the_drafts_grant() -> None:
    simulation = controlled(Pair(), rows=24)
    controller = simulation.controller
    assert controller is not None
    decide = controller.decide
    controller.decide = lambda now, batch, running, rows: decide(now, batch, running, 6)  # type: ignore[method-assign]
    simulation.run(30)
    assert controller.stage is Stage.ON
    assert {plan.rows for _, _, plan in simulation.plans} <= set(range(7))


def test_any_pair_at_any_load_is_within_the_bound() -> None:
    """Random worlds, random changes of load and of the draft."""
    rng = random.Random(11)
    for seed in range(12):
        slope, base = rng.uniform(0.001, 0.3), rng.uniform(0.001, 0.1)
        pair = Pair(
            round_s=lambda rows, tokens, slope=slope: 0.030 * (1 + slope * (tokens - 1)),
            acceptance=rng.random() * 0.9,
            c=rng.uniform(0.2, 1.0),
            base_s=base,
            noise=rng.uniform(0, 0.15),
        )
        simulation = controlled(pair, seed=seed)
        plain_s = 0.0
        for _ in range(8):
            simulation.batch = rng.choice([1, 2, 5, 16])
            pair.acceptance = rng.random() * 0.9
            tokens = simulation.tokens
            simulation.run(15)
            plain_s += (
                (simulation.tokens - tokens) / simulation.batch * pair.round_s(simulation.batch, simulation.batch)
            )
        assert simulation.now <= 1.05 * plain_s, (seed, slope, base)
