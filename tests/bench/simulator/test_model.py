"""Laws, times, load and determinism of the model."""

from __future__ import annotations

import pytest

from ssd_cluster.bench.simulator.capacity import carried_sequences
from ssd_cluster.bench.simulator.laws import MISSED, PowerLaws, RecordedLaws, power_rank
from ssd_cluster.bench.simulator.messages import Block, Outcome
from ssd_cluster.bench.simulator.run import simulate
from ssd_cluster.bench.simulator.settings import HitLaw
from ssd_cluster.bench.simulator.sweep import settings_of
from ssd_cluster.bench.simulator.times import LinkTime, StepTime, block_bytes
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import LookupResult

BASE = {"verify_ms": 20, "step_ms": 2, "acceptance": 0.8, "rounds": 300, "mode": "ssd"}


def test_times_are_linear_between_points() -> None:
    times = StepTime.parse("2:10/6:14/10:15")
    assert [round(1e3 * times.seconds(n), 6) for n in (1, 2, 4, 6, 8, 10, 14)] == [10, 10, 12, 14, 14.5, 15, 16]
    assert StepTime.parse("7").seconds(1000) == 0.007
    assert str(times) == "2:10/6:14/10:15"
    for wrong in ("", "1:2/x", "4:1/2:1", "1:-3", "0:1/4:2"):
        with pytest.raises(ConfigError):
            StepTime.parse(wrong)


def test_link_and_sizes() -> None:
    assert LinkTime(one_way_ms=2).seconds(10**9) == 0.002
    assert LinkTime(one_way_ms=2, mbit_s=8).seconds(1000) == pytest.approx(0.003)
    assert block_bytes(24, 24 * 7) == 864, "as the protocol's own count says: about 850"


def test_power_law_of_ranks() -> None:
    law = HitLaw(c=0.5, c_full=0.2, r=1.0)
    uniforms = [(i + 0.5) / 10_000 for i in range(10_000)]
    for full, c in ((False, 0.5), (True, 0.2)):
        ranks = [power_rank(law, full, u) for u in uniforms]
        for guesses in (1, 2, 4, 16):
            misses = sum(rank >= guesses for rank in ranks) / len(ranks)
            assert misses == pytest.approx(c / guesses, abs=2e-4)
    flat = HitLaw.flat(0.9)
    assert {power_rank(flat, True, u) for u in uniforms} == {0, MISSED}


def test_outcomes_follow_acceptance_by_position() -> None:
    laws = PowerLaws(settings_of(BASE | {"acceptance": "0.9/0.5/0", "fallback_acceptance": 0.25}), seed=1)
    kept = [laws.kept(4, drafted=True) for _ in range(20_000)]
    assert sum(k >= 1 for k in kept) / 20_000 == pytest.approx(0.9, abs=0.01)
    assert sum(k >= 2 for k in kept) / 20_000 == pytest.approx(0.45, abs=0.01)
    assert max(kept) == 2
    local = [laws.kept(1, drafted=False) for _ in range(20_000)]
    assert sum(local) / 20_000 == pytest.approx(0.25, abs=0.01)


def test_a_shorter_chain_makes_a_miss_cheaper_and_worth_less() -> None:
    never_hit = BASE | {"k": 6, "rows": 8, "hits": "0", "hits_after_backup": "0", "miss_policy": "always_wait"}
    whole, short = (simulate(settings_of(never_hit | more)) for more in ({}, {"chain_k": 2}))
    assert whole.wait_ms == pytest.approx(short.wait_ms + 4 * 2, abs=0.01), "four steps of 2 ms"
    assert short.tokens_per_round < whole.tokens_per_round
    assert simulate(settings_of(never_hit | {"chain_k": 6})).wait_ms == whole.wait_ms


def test_recorded_ranks_leave_the_rest_unguessed() -> None:
    table = {(full, cached): [0.5, 0.25] for full in (True, False) for cached in (True, False)}
    laws = RecordedLaws([0.8], [0.1], table, seed=3)
    ranks = [laws.rank(True, False) for _ in range(20_000)]
    shares = [ranks.count(rank) / 20_000 for rank in (0, 1, MISSED)]
    assert shares == [pytest.approx(0.5, abs=0.02), pytest.approx(0.25, abs=0.02), pytest.approx(0.25, abs=0.02)]


def test_lookup_needs_the_guess_and_something_behind_it() -> None:
    block = Block(0, 1, depths=((5, 3), (0,)))
    assert block.look_up(Outcome(1, 0, 1), 5) == (LookupResult.HIT, 3)
    assert block.look_up(Outcome(1, 0, 0), 4) == (LookupResult.HIT, 4)
    assert block.look_up(Outcome(1, 0, 2), 5) == (LookupResult.MISS, 0)
    assert block.look_up(Outcome(1, 1, 0), 5) == (LookupResult.LATE, 0)
    assert block.look_up(Outcome(2, 2, 0), 5) == (LookupResult.MISS, 0)
    assert block.size == (3, 8)


def test_the_same_seed_gives_the_same_result_and_another_does_not() -> None:
    settings = settings_of(BASE | {"targets": 3, "drafts": 2, "batch": 2})
    assert simulate(settings) == simulate(settings)
    assert simulate(settings) != simulate(settings.model_copy(update={"seed": 1}))


def test_times_of_a_round_add_up() -> None:
    result = simulate(settings_of(BASE | {"overhead_ms": 3, "batch": 2}))
    parts = result.verify_ms + result.wait_ms + result.overhead_ms
    assert parts == pytest.approx(result.round_ms, rel=1e-6)
    assert result.wait_ms > 0


def test_more_guesses_hit_more_and_a_better_plan_beats_uniform() -> None:
    few, many = (simulate(settings_of(BASE | {"rows": rows, "rounds": 800})) for rows in (4, 24))
    assert (many.hit_rate or 0) > (few.hit_rate or 0) + 0.1
    tight = BASE | {"rows": 8, "k": 7, "acceptance": 0.6, "rounds": 1500}
    rates = {law: simulate(settings_of(tight | {"fanout": law})).hit_rate for law in ("uniform", "measured")}
    assert (rates["measured"] or 0) > (rates["uniform"] or 0)


def test_load_costs_hits_and_another_draft_brings_them_back() -> None:
    load = BASE | {"targets": 24, "rounds": 100, "warm_up": 30}
    alone, crowded, shared = (
        simulate(settings_of(load | values)) for values in ({"targets": 1}, {"drafts": 1}, {"drafts": 8})
    )
    assert (crowded.hit_rate or 0) < 0.8 * (alone.hit_rate or 0)
    assert (shared.hit_rate or 0) > 0.9 * (alone.hit_rate or 0)
    assert (crowded.draft_utilisation or 0) > 0.95


def test_capacity_is_where_hits_fall() -> None:
    settings = settings_of(BASE | {"rounds": 150, "warm_up": 30, "step_ms": "1:2/64:4"})
    carried = carried_sequences(settings)
    assert 2 <= carried < 24
    slower = carried_sequences(settings.model_copy(update={"step_ms": StepTime.parse("1:4/64:8")}))
    assert slower < carried
    assert carried_sequences(settings_of(BASE | {"hits": 0, "hits_after_backup": 0})) == 0


def test_a_chain_that_takes_too_long_comes_as_far_as_it_is() -> None:
    slow = {"step_ms": 8, "k": 5, "miss_policy": "always_wait", "hits": 0, "hits_after_backup": 0}
    patient, hasty = (simulate(settings_of(BASE | slow | {"wait_ms": ms})) for ms in (1000, 20))
    assert patient.wait_ms == pytest.approx(40, rel=0.15)
    assert hasty.wait_ms <= 20
    assert 1 < hasty.tokens_per_round < patient.tokens_per_round


def test_an_unfinished_tree_leaves_a_round_trip_early() -> None:
    """Glue and eight steps of 2 ms do not fit beside both ways of 2 ms into a verification of 20 ms; seven do."""
    far = simulate(settings_of(BASE | {"k": 8, "batch": 8, "one_way_ms": 2, "miss_policy": "never_wait"}))
    near = simulate(settings_of(BASE | {"k": 8, "batch": 8, "miss_policy": "never_wait"}))
    assert (far.late_rate or 0) < 0.05
    assert (far.hit_rate or 0) > 0.9 * (near.hit_rate or 0)
    assert 1.5 < far.tokens_per_round < near.tokens_per_round
