"""A target and a draft as numbers: a simulated clock, kept lengths by acceptance, hits by a power law of the rows.

It tells a controller what a target's round loop would tell it, and obeys it, so that control loops can be tested in
milliseconds; or it follows one fixed plan, to be compared with.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ssd_cluster.config import MissPolicy
from ssd_cluster.speculation.controller import Controller, Limits
from ssd_cluster.speculation.ledger import Ledger
from ssd_cluster.speculation.measured import Measured, RoundSample
from ssd_cluster.speculation.planning import Plan
from ssd_cluster.speculation.waiting import WaitEstimator, make_policy
from ssd_cluster.types import LookupResult

DRAFTED = "drafted"


@dataclass
class Pair:
    """What is true of the simulated pair; may be changed while it runs.

    Attributes:
        round_s: seconds of a target round by (rows, tokens).
        acceptance: of every proposed token.
        c, r: a miss has probability c F^-r with F = rows / (k + 1) guesses.
        base_s, per_row_s: step time of the draft.
        one_way_s: of the link.
        noise: standard deviation of the logarithm of round times.
    """

    round_s: Callable[[int, int], float] = lambda rows, tokens: 0.030 * (1 + 0.02 * (tokens - 1))
    acceptance: float = 0.8
    c: float = 0.45
    r: float = 0.57
    base_s: float = 0.003
    per_row_s: float = 0.0001
    one_way_s: float = 0.0003
    noise: float = 0.03

    def step_s(self, rows: int) -> float:
        return self.base_s + self.per_row_s * rows


@dataclass
class Row:
    """One request: what it verifies next."""

    key: int
    proposal: int = 0
    drafted: bool = False
    asked: Limits | None = None
    opening: int = 0


@dataclass
class Simulation:
    """Runs rounds of ``batch`` endless requests.

    Attributes:
        pair: may be changed between rounds.
        batch: likewise.
        controller: decides; without one, ``fixed`` is followed.
    """

    pair: Pair
    batch: int = 1
    controller: Controller | None = None
    measured: Measured = field(default_factory=Measured)
    fixed: Plan | None = None
    seed: int = 0
    now: float = 0.0
    tokens: int = 0
    rounds: int = 0
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.estimator = WaitEstimator(make_policy(MissPolicy.RULE), 5)
        self.told = Pair(**self.pair.__dict__)
        self.measured.drafting.told(self.told.base_s, self.told.per_row_s)
        self.plans: list[tuple[float, str, Plan]] = []

    @property
    def plain_s(self) -> float:
        """Seconds that plain decoding would take for the same tokens at the present load."""
        return self.tokens / self.batch * self.pair.round_s(self.batch, self.batch)

    def limits(self, row: Row) -> Limits:
        if self.controller is not None:
            return self.controller.limits(row.key)
        assert self.fixed is not None
        return Limits(self.fixed.k, self.fixed.rows, attached=self.fixed.k > 0)

    def run(self, seconds: float) -> float:
        """Decode for so long; returns tokens per second."""
        began, tokens = self.now, self.tokens
        while self.now < began + seconds:
            self.step()
        return (self.tokens - tokens) / (self.now - began)

    def step(self) -> None:
        """One round."""
        while len(self.rows) < self.batch:
            self.rows.append(Row(key=len(self.rows)))
        rows = self.rows[: self.batch]
        attached = any(row.asked is not None for row in self.rows)
        n_tokens = sum(1 + row.proposal for row in rows)
        verify = self.pair.round_s(len(rows), n_tokens) * self.rng.lognormvariate(0, self.pair.noise)
        kept = [self._kept(row) for row in rows]
        emitted = sum(kept) + len(rows)
        self.now += verify
        self.rounds += 1
        if self.controller is not None:
            running = [(row.key, 1000) for row in rows]
            self.controller.decide(self.now, len(rows), running, 10**6)
            self.plans.append((self.now, self.controller.stage.value, self.controller.plan))
        waited = self._propose(rows, kept, verify)
        self.now += waited
        self.tokens += emitted
        self.estimator.observe_verify(verify)
        sample = RoundSample(
            self.now, len(rows), n_tokens, emitted, verify + waited, waited, attached, decoding_only=True
        )
        if self.controller is not None:
            self.controller.round(sample)

    def _kept(self, row: Row) -> int:
        kept = 0
        while kept < row.proposal and self.rng.random() < self.pair.acceptance:
            kept += 1
        if row.asked is not None:
            self.measured.row(row.proposal, kept, kept + 1, drafted=row.drafted)
            self.estimator.observe_row(drafted=row.drafted, tokens=kept + 1)
        return kept

    def _propose(self, rows: list[Row], kept: list[int], verify: float) -> float:
        """Look up, wait where that pays, and leave every row with its next proposal; returns the seconds waited."""
        working = [row for row in rows if row.asked is not None and row.asked.rows]
        reach = self._reach(working, verify)
        missing: list[Row] = []
        for row, k in zip(rows, kept, strict=True):
            limits, depth = self.limits(row), self._depth(row, reach)
            verified, row.proposal, row.drafted = row.proposal, 0, False
            if depth is not None:
                self._look_up(row, verified, k, depth, limits)
            if limits.k and row.asked is not None and not row.proposal and not row.opening:
                missing.append(row)
            self._attach(row, limits)
        wait = self.controller.may_wait if self.controller is not None else self.fixed is not None and self.fixed.wait
        if not (wait and missing and self.estimator.should_wait(len(rows), len(missing))):
            return 0.0
        return self._wait(missing)

    def _reach(self, working: list[Row], verify: float) -> int:
        """Depth that blocks reach in the time of a verification."""
        pair = self.pair
        total = sum(row.asked.rows for row in working if row.asked is not None)
        deepest = max((row.asked.k for row in working if row.asked is not None), default=0)
        first = 2 * pair.one_way_s + pair.step_s(sum(1 + row.proposal for row in working))
        depth = max(0, min(deepest, int((verify - first) / pair.step_s(total))))
        delay = first + depth * pair.step_s(total)
        for row in working:
            assert row.asked is not None
            asked = {"proposed": row.proposal, "rows": row.asked.rows, "sessions": len(working)}
            if depth:
                self.measured.drafting.observe_block(delay, depth=depth, **asked)
            elif not row.opening:
                self.measured.drafting.observe_late(verify, **asked)
        return depth

    @staticmethod
    def _depth(row: Row, reach: int) -> int | None:
        """Depth of the block that has come for a row; None if none was asked for."""
        if row.asked is None or not row.asked.rows or row.opening:
            return None
        return min(row.asked.k, reach)

    def _look_up(self, row: Row, n: int, kept: int, depth: int, limits: Limits) -> None:
        assert row.asked is not None
        if limits.k == 0:
            return
        result, rank = LookupResult.LATE, None
        if depth:
            guesses = row.asked.rows / (n + 1)
            u = self.rng.random()
            hit = u >= self.pair.c * max(1.0, guesses) ** -self.pair.r
            result = LookupResult.HIT if hit else LookupResult.MISS
            if hit:
                rank = 0 if u >= self.pair.c else min(int((self.pair.c / u) ** (1 / self.pair.r)), int(guesses) - 1)
                row.proposal, row.drafted = min(depth, limits.k), True
        self.measured.lookup(result, n=n, kept=kept, rank=rank, rows=row.asked.rows)
        self.estimator.observe_lookup(hit=result is LookupResult.HIT)

    def _attach(self, row: Row, limits: Limits) -> None:
        """Sessions open and close as the controller says; opening takes two rounds."""
        if not limits.attached:
            row.asked, row.proposal, row.drafted = None, 0, False
            return
        if row.asked is None:
            row.opening = 2
            self.measured.drafting.observe_trip(2 * self.pair.one_way_s)
        row.asked = limits
        row.opening = max(0, row.opening - 1)

    def _wait(self, missing: list[Row]) -> float:
        k = max(self.limits(row).k for row in missing)
        pair = self.pair
        seconds = 2 * pair.one_way_s + pair.step_s(2 * len(missing)) + (k - 1) * pair.step_s(len(missing))
        seconds = min(seconds, 0.1)
        for row in missing:
            if seconds < 0.1:
                row.proposal, row.drafted = k, True
        self.estimator.observe_wait(seconds)
        self.measured.drafting.observe_wait(seconds, len(missing), k)
        return seconds


def controlled(
    pair: Pair, *, k: int = 8, rows: int = 24, batch: int = 1, seed: int = 0, fixed: Iterable[str] = ()
) -> Simulation:
    """A simulation with a controller under these ceilings."""
    measured = Measured()
    controller = Controller(Plan(k, rows, wait=True), frozenset(fixed), measured, random.Random(seed), Ledger())
    return Simulation(pair, batch, controller, measured, seed=seed)


def best_fixed(pair: Pair, *, rows: int = 24, batch: int = 1) -> tuple[Plan, float]:
    """The fastest of all fixed plans up to k = 8 and ``rows``, plain decoding included, by running each."""
    plans = [Plan(0, 0, wait=False)]
    plans += [Plan(n, r, w) for n in (1, 2, 3, 4, 5, 6, 8) for r in {rows, rows // 4} for w in (False, True)]
    seconds = 20.0 if batch == 1 else 6.0
    speeds = {plan: Simulation(pair, batch, fixed=plan, seed=5).run(seconds) for plan in plans}
    best = max(speeds, key=lambda plan: speeds[plan])
    return best, speeds[best]
