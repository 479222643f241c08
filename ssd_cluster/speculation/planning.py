"""Which K, how many rows, and whether to wait: the speed model of section 6 with measured times and probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ssd_cluster.speculation.costs import RoundCosts
from ssd_cluster.speculation.drafting import DraftTimes
from ssd_cluster.speculation.fanout import allocate
from ssd_cluster.speculation.statistics import OutcomeStatistics

_LEAST_K, _MOST_K = 2, 8
_ROWS_SMALL, _ROWS_LARGE = 20, 10
_SMALL, _LARGE = 4, 16
_SHARES = (1.0, 0.75, 0.5, 0.25)
_LOOKAHEADS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
_NEGLIGIBLE = 1e-4


@dataclass(frozen=True, slots=True)
class Plan:
    """How a target speculates for the next second or so.

    Attributes:
        k: tokens proposed per row and round; 0 is plain decoding, without sessions.
        rows: branches per sequence and round that a draft may build.
        wait: rows that miss may wait for a just-in-time chain where the miss policy says so.
    """

    k: int
    rows: int
    wait: bool


PLAIN = Plan(0, 0, False)


@dataclass(slots=True)
class World:
    """Everything measured that a prediction needs.

    Attributes:
        costs: T_v(B, N).
        drafting: t(rows) and the link.
        outcomes: what was kept of drafted proposals, and the ranks of t*.
        rows: branches per sequence with which ``hit_rate`` was measured.
        k: tokens per proposal with which it was measured.
        hit_rate: share of the guessed outcomes, lookups without a block left aside; None before enough lookups.
        e_fallback: tokens per round of a row without a drafted proposal.
        n_fallback: tokens that such a row proposes.
        chain_k: most tokens of a just-in-time chain; None: K.
    """

    costs: RoundCosts
    drafting: DraftTimes
    outcomes: OutcomeStatistics
    rows: int = 0
    k: int = 0
    hit_rate: float | None = None
    e_fallback: float = 1.0
    n_fallback: float = 0.0
    chain_k: int | None = None

    def plain_speed(self, batch: int) -> float:
        """Tokens per second of ``batch`` rows without speculation.

        Raises:
            ValueError: no plain round was seen yet.
        """
        seconds = self.costs.plain(batch)
        if not seconds:
            raise ValueError("no plain round was seen yet")
        return batch / seconds


class Forecast:
    """Speeds that ``world`` predicts for one batch size; what several plans share is computed once.

    A round is taken for the mean over the number of rows that miss: each number waits if that yields more tokens per
    second, or uses the local fallback.

    Raises:
        ValueError: no plain round was seen yet.
    """

    def __init__(self, world: World, batch: int) -> None:
        self._world = world
        self._batch = batch
        self.plain = world.plain_speed(batch)
        self._rounds: dict[int, float] = {}
        self._rates: dict[tuple[int, int], float] = {}
        self._waits: dict[tuple[int, int], float] = {}
        self._laws: dict[int, tuple[list[float], list[float]]] = {}
        self._speeds: dict[Plan, float] = {PLAIN: self.plain}

    def speed(self, plan: Plan) -> float:
        """Tokens per second when all rows speculate by ``plan``."""
        known = self._speeds.get(plan)
        if known is None:
            known = self._speeds[plan] = self._predict(plan)
        return known

    def _predict(self, plan: Plan) -> float:
        world, short = self._world, self._seconds(self._world.n_fallback)
        depth = min(float(plan.k), max(0.0, world.drafting.depth(self._batch, plan.k, plan.rows, short)))
        p_hit = self._guess_rate(plan.k, plan.rows) * min(1.0, depth)
        depth = max(1.0, depth)
        hit = self._seconds(depth) - short
        chain_k = plan.k if world.chain_k is None else min(plan.k, world.chain_k)
        chain = self._seconds(float(chain_k)) - short
        e_hit, e_chain = _expected(world.outcomes, depth), _expected(world.outcomes, float(chain_k))
        tokens = seconds = 0.0
        for missing, p in enumerate(_binomial(self._batch, 1 - p_hit)):
            if p < _NEGLIGIBLE:
                continue
            hits = self._batch - missing
            emitted = hits * e_hit + missing * world.e_fallback
            duration = short + hit * hits / self._batch
            if plan.wait and missing:
                more = emitted + missing * (e_chain - world.e_fallback)
                longer = duration + chain * missing / self._batch + self._wait(missing, chain_k)
                if more * duration > emitted * longer:
                    emitted, duration = more, longer
            tokens += p * emitted
            seconds += p * duration
        return tokens / seconds

    def _wait(self, missing: int, k: int) -> float:
        seconds = self._waits.get((missing, k))
        if seconds is None:
            seconds = self._waits[missing, k] = self._world.drafting.wait_s(missing, k)
        return seconds

    def _seconds(self, proposed: float) -> float:
        """Duration of a round with ``proposed`` tokens per row; linear between whole numbers."""
        low = math.floor(proposed)
        if proposed == low:
            return self._whole(low)
        return self._whole(low) + (proposed - low) * (self._whole(low + 1) - self._whole(low))

    def _whole(self, proposed: int) -> float:
        seconds = self._rounds.get(proposed)
        if seconds is None:
            seconds = self._world.costs.loaded(self._batch, self._batch * (1 + proposed))
            self._rounds[proposed] = seconds
        return seconds

    def _guess_rate(self, k: int, rows: int) -> float:
        """Probability that the outcome of a proposal of ``k`` tokens is among ``rows`` guesses.

        The planner's own formula; its misses are scaled to those measured with another proposal and other rows.
        """
        rate, world = self._modelled_rate(k, rows), self._world
        if world.hit_rate is None:
            return rate
        scale = (1 - world.hit_rate) / max(1 - self._modelled_rate(world.k, world.rows), 1e-3)
        return min(1.0, max(0.0, 1 - scale * (1 - rate)))

    def _modelled_rate(self, k: int, rows: int) -> float:
        if rows <= 0:
            return 0.0
        rate = self._rates.get((k, rows))
        if rate is None:
            kept, (rejected, full) = self._world.outcomes.kept_probabilities(k), self._rank_laws(rows)
            laws = [*[rejected] * k, full]
            counts = allocate(rows, [rows] * (k + 1), lambda n, f: kept[n] * laws[n][f])
            rate = sum(p * sum(law[:count]) for p, law, count in zip(kept, laws, counts, strict=True))
            self._rates[k, rows] = rate
        return rate

    def _rank_laws(self, rows: int) -> tuple[list[float], list[float]]:
        """P(rank of t*) after a rejection and after full acceptance."""
        laws = self._laws.get(rows)
        if laws is None:
            outcomes = self._world.outcomes
            laws = outcomes.rank_probabilities(False, rows), outcomes.rank_probabilities(True, rows)
            self._laws[rows] = laws
        return laws


def _expected(outcomes: OutcomeStatistics, depth: float) -> float:
    """E at a mean depth, linear between whole depths."""
    low = math.floor(depth)
    part = depth - low
    e = outcomes.expected_tokens(low)
    return e if part == 0 else e + part * (outcomes.expected_tokens(low + 1) - e)


def _binomial(n: int, p: float) -> Sequence[float]:
    return [math.comb(n, m) * p**m * (1 - p) ** (n - m) for m in range(n + 1)]


def best_plan(forecast: Forecast, ceiling: Plan, fixed: frozenset[str]) -> Plan:
    """The plan of the highest predicted speed, the cheapest of equals.

    Args:
        forecast: what to maximise.
        ceiling: most tokens and rows, and whether waiting is allowed at all.
        fixed: "k", "rows", "wait": stay at the ceiling.
    """
    ks = [ceiling.k] if "k" in fixed else sorted({min(k, ceiling.k) for k in _LOOKAHEADS})
    waits = [ceiling.wait] if "wait" in fixed or not ceiling.wait else [False, True]
    shares = (1.0,) if "rows" in fixed else _SHARES
    rows = sorted({max(1, round(share * ceiling.rows)) for share in shares}) if ceiling.rows else [0]
    plans = [Plan(k, r, wait) for k in ks for r in rows for wait in waits]
    return max(plans, key=lambda plan: (forecast.speed(plan), -plan.k, -plan.rows, not plan.wait))


def starting_plan(world: World, ceiling: Plan, fixed: frozenset[str], batch: int) -> Plan:
    """Before anything is known: K = clamp(floor((T_v - t_glue - 2 one-way) / t(R)), 2, 8), and fewer rows if B > 4."""
    share = min(1.0, max(0.0, (batch - _SMALL) / (_LARGE - _SMALL)))
    usual = round(_ROWS_SMALL + share * (_ROWS_LARGE - _ROWS_SMALL))
    rows = ceiling.rows if "rows" in fixed else min(ceiling.rows, usual)
    if "k" in fixed:
        return Plan(ceiling.k, rows, ceiling.wait)
    plain = world.costs.plain(batch) or 0.0
    depth = world.drafting.depth(1, _LEAST_K, max(1, rows), plain)
    k = _MOST_K if math.isinf(depth) else int(min(max(depth, _LEAST_K), _MOST_K))
    return Plan(min(ceiling.k, k), rows, ceiling.wait)
