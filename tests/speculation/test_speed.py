"""The speed model against a simulation of what it describes, and against numbers worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ssd_cluster.speculation.speed import (
    PairTimes,
    acceptance_from_tokens,
    best_lookahead,
    expected_tokens,
    hit_probability,
    predict,
    speed,
    synchronous_speed,
    worth_extending,
)


def round_tokens(rng: random.Random, a: float, K: int) -> int:
    tokens = 1
    while tokens <= K and rng.random() < a:
        tokens += 1
    return tokens


def simulate(seed: int, *, hits: tuple[float, float], a: tuple[float, float], K: int, t: tuple[float, float]) -> float:
    """One sequence, round by round: a hit costs max(1, T_p), a miss first waits T_b; returns tokens per verify time.

    ``hits``: hit rate after a (hit, miss); ``a``: acceptance of proposals from (the cache, the backup).
    """
    rng = random.Random(seed)
    clock, tokens, hit = 0.0, 0, True
    for _ in range(60_000):
        hit = rng.random() < (hits[0] if hit else hits[1])
        clock += max(1.0, t[0]) if hit else 1.0 + t[1]
        tokens += round_tokens(rng, a[0] if hit else a[1], K)
    return tokens / clock


@pytest.mark.parametrize(
    ("hits", "a", "K", "t"),
    [
        ((0.7, 0.9), (0.8, 0.8), 5, (0.9, 0.4)),
        ((0.5, 0.85), (0.7, 0.2), 3, (1.3, 0.0)),
        ((0.9, 0.95), (0.6, 0.6), 7, (0.5, 2.0)),
    ],
)
def test_speed_is_what_the_simulated_rounds_give(
    hits: tuple[float, float], a: tuple[float, float], K: int, t: tuple[float, float]
) -> None:
    model = speed(hit_probability(*hits), expected_tokens(a[0], K), expected_tokens(a[1], K), *t)
    assert model == pytest.approx(simulate(1, hits=hits, a=a, K=K, t=t), rel=0.01)


def test_a_batch_that_waits_together_pays_unless_all_rows_hit() -> None:
    rng, p, batch, clock, tokens = random.Random(2), 0.8, 4, 0.0, 0
    for _ in range(40_000):
        rows = [rng.random() < p for _ in range(batch)]
        clock += 1.0 if all(rows) else 1.5
        tokens += sum(round_tokens(rng, 0.7, 4) for _ in rows)
    per_sequence = tokens / batch / clock
    e = expected_tokens(0.7, 4)
    assert speed(p, e, e, 1.0, 0.5, batch=batch) == pytest.approx(per_sequence, rel=0.01)


def test_hit_probability_at_its_edges() -> None:
    assert hit_probability(0.6, 0.6) == pytest.approx(0.6)
    assert hit_probability(1.0, 0.3) == pytest.approx(1.0)
    assert hit_probability(0.9, 0.0) == 0.0
    assert hit_probability(1.0, 0.0) == 1.0


def test_expected_tokens() -> None:
    assert expected_tokens(0.5, 2) == pytest.approx(1.75)
    assert expected_tokens(0.8, 5) == pytest.approx((1 - 0.8**6) / 0.2)
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.9, 0) == 1


@pytest.mark.parametrize("a", [0.1, 0.55, 0.93])
@pytest.mark.parametrize("K", [1, 4, 8])
def test_acceptance_from_tokens_inverts_it(a: float, K: int) -> None:
    assert acceptance_from_tokens(expected_tokens(a, K), K) == pytest.approx(a)


def test_acceptance_from_tokens_at_its_edges() -> None:
    assert acceptance_from_tokens(1.0, 4) == 0
    assert acceptance_from_tokens(9.0, 4) == pytest.approx(1)
    assert acceptance_from_tokens(1.0, 0) == 0


TIMES: dict[str, Callable[[int], float]] = {
    "verify-bound": lambda K: 1 + 0.02 * K,
    "draft-bound beyond 4": lambda K: max(1 + 0.01 * K, 0.25 * K),
    "costly": lambda K: 1 + 0.6 * K,
    "fixed cost first": lambda K: 1.0 if K == 0 else 2.0 + 0.01 * K,
}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("a", [0.3, 0.7, 0.95])
def test_lookahead_maximises_tokens_per_second(times: str, a: float) -> None:
    rate = {K: (1 - a ** (K + 1)) / (1 - a) / TIMES[times](K) for K in range(13)}
    best = best_lookahead(a, TIMES[times], 12)
    assert rate[best] == max(rate.values())
    for K in range(12):
        assert worth_extending(a, K, TIMES[times]) == (rate[K + 1] > rate[K])


def test_prediction_adds_up() -> None:
    times = PairTimes(plain=0.030, verify=0.040, draft_step=0.002, tree_step=0.006, glue=0.004, link=0.001)
    said = predict(times, a=0.5, p_hit=0.75, K=2)
    tokens = 1.75
    assert said.ar == pytest.approx(1 / 0.030)
    assert said.sd == pytest.approx(tokens / (0.040 + 0.004 + 0.002))
    assert said.ssd == pytest.approx(tokens / (0.75 * 0.040 + 0.25 * (0.040 + 0.004 + 0.002 + 0.002)))
    assert said.ssd_ratio == pytest.approx(said.ssd * 0.030)
    assert said.sd_ratio == pytest.approx(said.sd * 0.030)
    slow = PairTimes(plain=0.030, verify=0.040, draft_step=0.002, tree_step=0.05, glue=0.004, link=0.001)
    assert predict(slow, a=0.5, p_hit=1.0, K=2).ssd == pytest.approx(tokens / 0.106)


def test_prediction_refuses_nonsense() -> None:
    good = PairTimes(plain=0.03, verify=0.04, draft_step=0.002, tree_step=0.006, glue=0.004)
    with pytest.raises(ValueError, match="acceptance"):
        predict(good, a=1.2, p_hit=0.5, K=3)
    with pytest.raises(ValueError, match="positive"):
        predict(PairTimes(0.0, 0.04, 0.002, 0.006, 0.004), a=0.5, p_hit=0.5, K=3)


def test_synchronous_speed() -> None:
    assert synchronous_speed(3.0, 0.5) == pytest.approx(2.0)
