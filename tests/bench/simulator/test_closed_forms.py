"""The model agrees with the formulas of the speed model where those hold, and with the SSD paper's rows."""

from __future__ import annotations

import pytest

from ssd_cluster.bench.simulator.presets import PRESETS
from ssd_cluster.bench.simulator.run import SimulationResult, simulate
from ssd_cluster.bench.simulator.sweep import settings_of
from ssd_cluster.speculation.speed import expected_tokens, hit_probability, speed, synchronous_speed
from ssd_cluster.types import Mode

T_V, STEP, K, A = 20.0, 2.0, 5, 0.8
GLUE_AND_CHAIN = STEP * K


def run(mode: Mode, **values: object) -> SimulationResult:
    base = {"verify_ms": T_V, "step_ms": STEP, "k": K, "rows": 24, "acceptance": A, "fanout": "uniform"}
    return simulate(settings_of(base | {"miss_policy": "always_wait", "rounds": 4000, "mode": mode} | values))


def test_plain_decoding_is_one_token_per_verification_and_overhead() -> None:
    assert run(Mode.AR).per_sequence == pytest.approx(1e3 / T_V)
    result = run(Mode.AR, batch=8, overhead_ms=5, verify_ms="1:20/8:27")
    assert result.per_sequence == pytest.approx(1e3 / 32)
    assert result.tokens_per_s == pytest.approx(8e3 / 32)


def test_synchronous_speculation_drafts_then_verifies() -> None:
    expected = 1e3 / T_V * synchronous_speed(expected_tokens(A, K), GLUE_AND_CHAIN / T_V)
    result = run(Mode.SD)
    assert result.per_sequence == pytest.approx(expected, rel=0.02)
    assert result.round_ms == pytest.approx(T_V + GLUE_AND_CHAIN)
    assert result.draft_utilisation == pytest.approx(GLUE_AND_CHAIN / (T_V + GLUE_AND_CHAIN), rel=0.01)


def test_speed_and_hit_rate_with_caches_follow_the_formula() -> None:
    p_hit, e = hit_probability(0.8, 0.95), expected_tokens(A, K)
    result = run(Mode.SSD, hits=0.8, hits_after_backup=0.95)
    assert result.hit_rate == pytest.approx(p_hit, abs=0.02)
    expected = 1e3 / T_V * speed(p_hit, e, e, STEP * (K + 1) / T_V, GLUE_AND_CHAIN / T_V)
    assert result.per_sequence == pytest.approx(expected, rel=0.02)


def test_a_batch_that_waits_together_pays_unless_all_hit() -> None:
    e = expected_tokens(A, K)
    result = run(Mode.SSD, batch=4, hits=0.9, hits_after_backup=0.9, rounds=2000, max_step_rows=256)
    expected = 1e3 / T_V * speed(0.9, e, e, STEP * (K + 1) / T_V, GLUE_AND_CHAIN / T_V, batch=4)
    assert result.per_sequence == pytest.approx(expected, rel=0.03)


def test_a_row_that_does_not_wait_emits_one_token() -> None:
    result = run(Mode.SSD, miss_policy="never_wait", hits=0.7, hits_after_backup=0.7)
    assert result.wait_ms == 0
    expected = 1e3 / T_V * speed(0.7, expected_tokens(A, K), 1.0, STEP * (K + 1) / T_V, 0.0)
    assert result.per_sequence == pytest.approx(expected, rel=0.03)


def test_latency_lengthens_waits_by_both_ways_and_delays_blocks() -> None:
    near, far = (run(Mode.SSD, hits=0.5, hits_after_backup=0.5, one_way_ms=ms) for ms in (0, 3))
    waits = [result.wait_ms / (1 - (result.hit_rate or 0)) for result in (near, far)]
    assert waits[0] == pytest.approx(GLUE_AND_CHAIN, rel=0.1)
    assert waits[1] == pytest.approx(GLUE_AND_CHAIN + 6, rel=0.1)
    unreachable = run(Mode.SSD, one_way_ms=30, miss_policy="never_wait", rounds=300)
    assert unreachable.hit_rate == 0
    assert unreachable.tokens_per_round == 1


def test_bandwidth_counts() -> None:
    wide, narrow = (run(Mode.SSD, mbit_s=mbit, hits=0.5, hits_after_backup=0.5, rounds=500) for mbit in (1000, 0.2))
    assert narrow.wait_ms > wide.wait_ms
    assert narrow.tokens_per_s < wide.tokens_per_s


@pytest.mark.parametrize("name", ["paper-llama-70b", "paper-qwen-32b"])
def test_ratios_of_the_paper(name: str) -> None:
    preset = PRESETS[name]
    assert preset.k == {"paper-llama-70b": 6, "paper-qwen-32b": 3}[name]
    base = preset.settings() | {"rounds": 4000}
    speeds = {mode: simulate(settings_of(base | {"mode": mode})).tokens_per_s for mode in Mode}
    for over, under in ((Mode.SSD, Mode.SD), (Mode.SSD, Mode.AR)):
        published = preset.published(over) / preset.published(under)
        assert speeds[over] / speeds[under] == pytest.approx(published, rel=0.1)
