"""The speed model (speculation.md section 6). Times are in units of one verify forward unless a name says otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


def expected_tokens(a: float, K: int) -> float:
    """E(K) = (1 - a^{K+1}) / (1 - a): mean tokens of a round, t* included, with constant acceptance ``a`` in [0, 1]."""
    return sum(a**k for k in range(K + 1))


def acceptance_from_tokens(tokens: float, K: int) -> float:
    """The constant acceptance whose E(K) is ``tokens``; clipped to [0, 1]. 0 for K = 0."""
    low, high = 0.0, 1.0
    if K == 0 or tokens <= 1:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if expected_tokens(middle, K) < tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def hit_probability(p_primary: float, p_backup: float) -> float:
    """p_hit = p_b / (1 + p_b - p_p): long-run share of rounds that hit.

    Args:
        p_primary: hit rate of rounds that follow a hit (their proposal came from the cache).
        p_backup: hit rate of rounds that follow a miss.
    """
    return p_backup / (1 + p_backup - p_primary) if p_backup > 0 else float(p_primary >= 1)


def speed(p_hit: float, e_hit: float, e_miss: float, t_primary: float, t_backup: float, batch: int = 1) -> float:
    """S: tokens per sequence and verify time with speculation caches.

    [p e_hit + (1 - p) e_miss] / [p^b max(1, T_p) + (1 - p^b)(1 + T_b)]; a batch of b that waits together pays for a
    miss unless all of its rows hit. Plain decoding has speed 1 if its step costs one verify time.

    Args:
        p_hit: share of rows that hit.
        e_hit: tokens per round after a hit, t* included.
        e_miss: tokens per round after a miss.
        t_primary: time to draft the speculation cache, beside the verify.
        t_backup: time to draft just in time, with the target waiting; 0 for a local fallback.
        batch: sequences that wait together.
    """
    all_hit = p_hit**batch
    return (p_hit * e_hit + (1 - p_hit) * e_miss) / (all_hit * max(1.0, t_primary) + (1 - all_hit) * (1 + t_backup))


def synchronous_speed(e: float, t_draft: float) -> float:
    """Tokens per verify time when every round drafts first: E / (1 + T_draft)."""
    return e / (1 + t_draft)


def worth_extending(a: float, K: int, seconds_of: Callable[[int], float]) -> bool:
    """Whether K + 1 tokens beat K: a^{K+1} / E(K) > [T(K+1) - T(K)] / T(K).

    Args:
        a: acceptance.
        K: current lookahead.
        seconds_of: round time T(K) = max(T_v(K), T_draft(K)), any unit.
    """
    now = seconds_of(K)
    return a ** (K + 1) * now > (seconds_of(K + 1) - now) * expected_tokens(a, K)


def best_lookahead(a: float, seconds_of: Callable[[int], float], most: int) -> int:
    """The K in 0..``most`` of the most tokens per second, E(K) / T(K); the smallest of equals.

    Where T is convex, extending from 0 while ``worth_extending`` holds ends at the same K.
    """
    return max(range(most + 1), key=lambda K: (expected_tokens(a, K) / seconds_of(K), -K))


@dataclass(frozen=True, slots=True)
class PairTimes:
    """Measured step times of a pair, seconds.

    Attributes:
        plain: one plain decoding step of the target (one token).
        verify: one verify forward over K + 1 tokens.
        draft_step: one draft forward with a single row.
        tree_step: one draft forward with all R branches.
        glue: the draft's forward over [t*, x_1..x_K].
        link: one way over the link.
    """

    plain: float
    verify: float
    draft_step: float
    tree_step: float
    glue: float
    link: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """Speeds in tokens per second of one sequence, with their ratios to plain decoding."""

    ar: float
    sd: float
    ssd: float

    @property
    def sd_ratio(self) -> float:
        return self.sd / self.ar

    @property
    def ssd_ratio(self) -> float:
        return self.ssd / self.ar


def predict(times: PairTimes, a: float, p_hit: float, K: int) -> Prediction:
    """What the model says about a pair at batch 1, misses waiting for a just-in-time chain.

    Args:
        times: measured step times.
        a: acceptance per proposed token.
        p_hit: share of rounds that hit.
        K: lookahead.

    Raises:
        ValueError: a time is not positive (``link`` may be 0), or a probability is outside [0, 1].
    """
    forwards = (times.plain, times.verify, times.draft_step, times.tree_step, times.glue)
    if not all(t > 0 and math.isfinite(t) for t in forwards) or times.link < 0:
        raise ValueError(f"step times must be positive: {times}")
    if not (0 <= a <= 1 and 0 <= p_hit <= 1):
        raise ValueError(f"acceptance {a} and hit rate {p_hit} must lie in [0, 1]")
    tokens = expected_tokens(a, K)
    primary = (times.glue + K * times.tree_step + 2 * times.link) / times.verify
    backup = (times.glue + (K - 1) * times.draft_step + 2 * times.link) / times.verify
    drafting = (times.glue + (K - 1) * times.draft_step) / times.verify
    return Prediction(
        ar=1 / times.plain,
        sd=synchronous_speed(tokens, drafting) / times.verify,
        ssd=speed(p_hit, tokens, tokens, primary, backup) / times.verify,
    )
