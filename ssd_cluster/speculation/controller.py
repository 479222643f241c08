"""Whether and how a target speculates: measures, plans about once a second, and never loses much (section 8).

Three stages. ``PLAIN``: nothing is proposed and no session is open. ``PROBE``: one running request is proposed to for
16 rounds. ``ON``: every request speculates by the plan. A probe that promises nothing, or rounds that lose more than
the ledger allows, lead back to ``PLAIN``; then the next probe is due in 5 s, doubling to 60 s while they fail.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ssd_cluster.speculation.ledger import Ledger
from ssd_cluster.speculation.measured import Measured, RoundSample
from ssd_cluster.speculation.planning import PLAIN, Forecast, Plan, best_plan, starting_plan

_PROBE_ROUNDS = 16
_FEW_DRAFTED = 3
_PROBE_PATIENCE_S = 10.0
_PROBE_CREDIT_ROUNDS = 1.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 60.0
_JITTER = 0.25
_REPLAN_S = 1.0
_SETTLE_ROUNDS = 6
_WORTH_STARTING = 1.05
_WORTH_KEEPING = 1.02
_WORTH_SWITCHING = 1.04
_BATCH_CHANGE = 1.5
_LASTING_S = 30.0
_QUIET_ROUNDS = 4
_QUIET_EVERY_S, _QUIET_EVERY_ROUNDS, _QUIET_SOONEST_ROUNDS = 15.0, 256, 64
_PLAIN_MEMORY_S = 60.0


class Stage(StrEnum):
    PLAIN = "plain"
    PROBE = "probe"
    ON = "on"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may do now.

    Attributes:
        k: most tokens proposed to it.
        rows: most branches that a draft builds for it.
        attached: it may have a session; without, an open one is closed.
    """

    k: int
    rows: int
    attached: bool


_DETACHED = Limits(0, 0, attached=False)
_QUIET = Limits(0, 0, attached=True)


class Controller:
    """Decides for one target. Pure: times are handed in, in seconds of any monotonic clock.

    Args:
        ceiling: most tokens and rows, and whether the miss policy ever waits.
        fixed: of "k", "rows", "wait": always at the ceiling. With a fixed k the target always speculates.
        measured: what the target has observed.
        rng: jitter of probes.
    """

    def __init__(
        self, ceiling: Plan, fixed: frozenset[str], measured: Measured, rng: random.Random, ledger: Ledger | None = None
    ) -> None:
        self._ceiling = ceiling
        self._fixed = fixed
        self._measured = measured
        self._rng = rng
        self._ledger = ledger if ledger is not None else Ledger()
        always = "k" in fixed
        self.stage = Stage.ON if always else Stage.PLAIN
        self.plan = ceiling if always else PLAIN
        self.predicted = self.predicted_plain = 0.0
        self._probes = {"good": 0, "bad": 0}
        self._always = always
        self._probed: int | None = None
        self._room: Plan | None = None
        self._batch = self._failed_batch = 0
        self._pause_s = _FIRST_PAUSE_S
        self._probe_at = -1.0
        self._since = 0.0
        self._replan_at = -1.0
        self._rounds = self._settled = 0
        self._promising = False  # another plan was better when last looked at; it must be so twice to be taken
        self._quiet = 0
        self._quiet_at, self._quiet_round = 0.0, -_QUIET_SOONEST_ROUNDS

    # --- what the target asks ---------------------------------------------------------------------------------------

    @property
    def may_wait(self) -> bool:
        """Whether rows that miss may wait now."""
        return self.plan.wait and not self._quiet

    def limits(self, key: int) -> Limits:
        """What the request ``key`` may do until the next round."""
        if self.stage is Stage.PLAIN or (self.stage is Stage.PROBE and key != self._probed):
            return _DETACHED
        if self._quiet:
            return _QUIET
        return Limits(self.plan.k, self.plan.rows, attached=True)

    def take_probes(self) -> dict[str, int]:
        """Probes that have ended since the last call, by what they led to: ``good``, ``bad``."""
        ended, self._probes = self._probes, {"good": 0, "bad": 0}
        return ended

    # --- what the target tells --------------------------------------------------------------------------------------

    def round(self, sample: RoundSample) -> None:
        """Account for a round that has ended."""
        self._rounds += 1
        quiet_now = self._quiet
        self._quiet = max(0, self._quiet - 1)
        # The draft may still have worked in the first of them, so that one is no plain round.
        is_plain = not sample.attached or 0 < quiet_now < _QUIET_ROUNDS
        self._measured.round(sample, is_plain=is_plain, counts=self.stage is Stage.ON and not quiet_now)
        plain_s = self._measured.costs.plain(sample.batch)
        if plain_s is None or not sample.batch or not sample.decoding_only:
            return
        if is_plain:
            self._ledger.count(plain_s, plain_s, plain_s)
        else:
            self._ledger.count(plain_s * sample.emitted / sample.batch, sample.seconds, plain_s)

    def decide(self, now: float, batch: int, running: Sequence[tuple[int, int]], rows: int | None) -> None:
        """Choose stage and plan for the next round.

        Args:
            now: the time.
            batch: requests that decode.
            running: (key, tokens left) of those that may speculate.
            rows: most branches per request that the drafts grant; None if no draft can be used.
        """
        if not running:
            return
        self._room = replace(self._ceiling, rows=min(self._ceiling.rows, rows)) if rows is not None else None
        changed = not batch / _BATCH_CHANGE < self._batch < batch * _BATCH_CHANGE
        if changed:
            self._batch = batch
            self._measured.restart_speed()
            self._settled = self._rounds + _SETTLE_ROUNDS
        if self.stage is Stage.PLAIN:
            self._consider_probe(now, batch, running)
        elif self.stage is Stage.PROBE:
            self._follow_probe(now, batch, running)
        else:
            self._keep_on(now, batch, changed)

    # --- plain ------------------------------------------------------------------------------------------------------

    def _consider_probe(self, now: float, batch: int, running: Sequence[tuple[int, int]]) -> None:
        costs = self._measured.costs
        if self._failed_batch >= 2 * batch:
            self._failed_batch, self._pause_s = batch, _FIRST_PAUSE_S
            self._probe_at = min(self._probe_at, now + self._jittered(_REPLAN_S))
        if self._room is None or now < self._probe_at or not costs.plain_known(batch, now - _PLAIN_MEMORY_S):
            return
        if self._ledger.balance_s < _PROBE_CREDIT_ROUNDS * (costs.plain(batch) or 0.0):
            return
        self.stage, self._since = Stage.PROBE, now
        self._measured.restart()
        plan = starting_plan(self._measured.world, self._room, self._fixed, batch)
        # Waits are what a useless draft costs most with; whether they would pay can be predicted without any.
        self.plan = Plan(plan.k, plan.rows, plan.wait and (plan.rows == 0 or "wait" in self._fixed))
        self._probed = None
        self._choose(running)

    def _choose(self, running: Sequence[tuple[int, int]]) -> None:
        """Keep probing the same request while it runs, then the one with most left to say."""
        if all(key != self._probed for key, _ in running):
            self._probed = max(running, key=lambda one: one[1])[0]

    def _follow_probe(self, now: float, batch: int, running: Sequence[tuple[int, int]]) -> None:
        seen = self._measured.lookups
        if self._ledger.empty or (seen == 0 and now - self._since > _PROBE_PATIENCE_S):
            self._stop(now, batch, failed=True)
        elif seen < _PROBE_ROUNDS:
            self._choose(running)
            if 2 * seen >= _PROBE_ROUNDS and self._measured.drafted < _FEW_DRAFTED and self._ceiling.wait:
                self.plan = replace(self.plan, wait=True)  # without chains, nothing shows what drafted tokens are worth
        else:
            forecast = Forecast(self._measured.world, batch)
            plan = best_plan(forecast, self._room or self._ceiling, self._fixed)
            if forecast.speed(plan) < _WORTH_STARTING * forecast.plain:
                self._stop(now, batch, failed=True)
            else:
                self._start(now, plan, forecast)

    # --- on ---------------------------------------------------------------------------------------------------------

    def _start(self, now: float, plan: Plan, forecast: Forecast) -> None:
        self._probes["good"] += 1
        self.stage, self._since, self._probed = Stage.ON, now, None
        self._adopt(now, plan, forecast)
        self._settled = self._rounds + _SETTLE_ROUNDS
        self._quiet_at, self._quiet_round = now, self._rounds

    def _keep_on(self, now: float, batch: int, changed: bool) -> None:
        if self._ledger.empty and not self._always:
            self._stop(now, batch, failed=now - self._since < _LASTING_S)
            return
        if self._quiet or self._measured.costs.plain(batch) is None:
            if not self._quiet and self._always:
                self._be_quiet(now)
            return
        if self._wants_quiet(now, batch):
            self._be_quiet(now)
        elif changed or now >= self._replan_at or self._rounds == self._settled:
            self._replan(now, batch, changed or self._rounds == self._settled)

    def _wants_quiet(self, now: float, batch: int) -> bool:
        """Whether it is time to measure plain rounds again, without a draft at work beside them."""
        rounds = self._rounds - self._quiet_round
        if not self._measured.costs.plain_known(batch, now - _PLAIN_MEMORY_S):
            return rounds >= _QUIET_SOONEST_ROUNDS
        return rounds >= _QUIET_EVERY_ROUNDS and now - self._quiet_at >= _QUIET_EVERY_S

    def _be_quiet(self, now: float) -> None:
        self._quiet = _QUIET_ROUNDS
        self._quiet_at, self._quiet_round = now, self._rounds

    def _replan(self, now: float, batch: int, changed: bool) -> None:
        self._measured.costs.forget(now)
        forecast = Forecast(self._measured.world, batch)
        scale = self._measured.calibrate(forecast.speed(self.plan))
        best = best_plan(forecast, self._room or self._ceiling, self._fixed)
        known = self._measured.costs.loaded_known(batch)
        if not self._always and known and scale * forecast.speed(best) < _WORTH_KEEPING * forecast.plain:
            self._stop(now, batch, failed=now - self._since < _LASTING_S)
            return
        better = forecast.speed(best) > _WORTH_SWITCHING * forecast.speed(self.plan)
        urgent = changed or not self._allowed(self.plan)
        switch = urgent or (better and self._promising)
        self._promising = better and not switch
        self._adopt(now, best if switch else self.plan, forecast, scale)

    def _allowed(self, plan: Plan) -> bool:
        return 0 < plan.k <= self._ceiling.k and plan.rows <= self._ceiling.rows

    def _adopt(self, now: float, plan: Plan, forecast: Forecast, scale: float = 1.0) -> None:
        if plan != self.plan:
            self._measured.restart()
        self.plan = plan
        self.predicted, self.predicted_plain = scale * forecast.speed(plan), forecast.plain
        self._replan_at = now + self._jittered(_REPLAN_S)

    def _stop(self, now: float, batch: int, *, failed: bool) -> None:
        """Back to plain decoding; the next probe later if this one, or a short stretch of speculation, has failed."""
        if self.stage is Stage.PROBE:
            self._probes["bad"] += 1
        self.stage, self.plan, self._probed, self._quiet = Stage.PLAIN, PLAIN, None, 0
        self.predicted = self.predicted_plain
        self._failed_batch = batch
        if not failed:
            self._pause_s = _FIRST_PAUSE_S
        self._probe_at = now + self._jittered(self._pause_s)
        if failed:
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + _JITTER * (2 * self._rng.random() - 1))
