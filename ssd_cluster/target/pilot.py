"""The controller's place in the target engine: what it is told after every round, and how its choices are applied.

Without a controller (mode ``sd``, or switched off) everything here is a no-op and the configured values hold.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ssd_cluster.config import MissPolicy, TargetSettings
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.speculation.controller import Controller, Stage
from ssd_cluster.speculation.measured import Measured, RoundSample
from ssd_cluster.speculation.planning import Plan
from ssd_cluster.target.drafts import DraftPool
from ssd_cluster.target.replica import ReplicaState
from ssd_cluster.target.sequence import Choice
from ssd_cluster.types import LookupResult, Mode

if TYPE_CHECKING:
    from ssd_cluster.target.proposer import Decided
    from ssd_cluster.target.scheduler import Row
    from ssd_cluster.target.times import Stopwatch

logger = logging.getLogger(__name__)


class Pilot:
    """Feeds and obeys the controller of one target; used by the engine's thread.

    Args:
        settings: of the target.
        pool: draft sessions.
        metrics: where decisions are shown.
        clock: seconds, monotonic.
        rng: jitter of probes.
    """

    def __init__(
        self,
        settings: TargetSettings,
        pool: DraftPool,
        metrics: TargetMetrics,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._measured = Measured()
        self._attached = False
        self._told = (0.0, 0.0)
        self.controller: Controller | None = None
        self.retune(settings)

    def retune(self, settings: TargetSettings) -> None:
        """Follow these settings; a controller starts anew, with what has been measured."""
        speculation, metrics = settings.speculation, self._metrics
        self._rows = speculation.rows
        self.controller = self._pool.times.into = None
        self._measured.chain_k = speculation.chain_k
        if speculation.controller.enabled and settings.mode is Mode.SSD and speculation.k:
            ceiling = Plan(speculation.k, speculation.rows, speculation.miss_policy is not MissPolicy.NEVER_WAIT)
            self.controller = Controller(ceiling, frozenset(speculation.controller.fixed), self._measured, self._rng)
            self._pool.times.into = self._measured.drafting
        elif settings.mode is not Mode.AR and speculation.k:
            metrics.planned_k.set(speculation.k)
            metrics.planned_rows.set(speculation.rows if settings.mode is Mode.SSD else 0)
            metrics.speculating.set(1)
        else:
            metrics.speculating.set(0)

    @property
    def may_wait(self) -> bool:
        """Whether the controller lets rows that miss wait."""
        return self.controller is None or self.controller.may_wait

    @property
    def plan(self) -> Plan | None:
        """What is followed now; None without a controller."""
        return self.controller.plan if self.controller is not None else None

    def admit(self, choice: Choice) -> None:
        """Limit a choice before its session is opened."""
        if self.controller is not None and choice.session is not None:
            choice.session.limits = self.controller.limits(choice.session.id)

    def decide(self, decided: Sequence[Decided]) -> None:
        """Plan the next round and apply it: limits of every running choice, sessions that may not stay are closed."""
        if self.controller is None:
            return
        self._attached = any(r.choice.session is not None and r.choice.session.replica is not None for r in decided)
        going = [row.choice for row in decided if not row.ended]
        running = [(choice.session.id, choice.n_left) for choice in going if choice.session is not None]
        before = self.controller.stage
        self.controller.decide(self._clock(), len(going), running, self._grant(len(running)))
        if self.controller.stage is not before:
            self._log(len(going))
        for choice in going:
            session = choice.session
            if session is None:
                continue
            wanted = session.may_attach
            self.admit(choice)
            if not session.may_attach and session.replica is not None:
                self._pool.close(session)
            elif not session.may_attach and wanted:
                self._pool.forget(session)  # it may wait for a lease

    def _log(self, batch: int) -> None:
        controller = self.controller
        if controller is not None:
            plan = controller.plan
            logger.info(
                "speculation stage=%s batch=%d k=%d rows=%d wait=%s predicted=%.1f plain=%.1f",
                controller.stage.value,
                batch,
                plan.k,
                plan.rows,
                plan.wait,
                controller.predicted,
                controller.predicted_plain,
            )

    def _grant(self, sessions: int) -> int | None:
        """Rows that the drafts grant to each of so many sessions; None if no draft can be used.

        A leased draft is linked only when a session wants it, so that the settings must do until then.
        """
        ready = [replica for replica in self._pool.links.replicas if replica.state is ReplicaState.READY]
        if not ready:
            return self._rows if self._pool.leases is not None else None
        welcome = ready[0].welcome
        if welcome is not None:
            told = (welcome.step_time.base_us / 1e6, welcome.step_time.per_row_us / 1e6)
            if told != self._told:
                self._told = told
                self._measured.drafting.told(*told)
        return sum(replica.row_credit for replica in ready) // max(1, sessions)

    def looked_up(self, row: Decided, result: LookupResult, rank: int | None) -> None:
        """A lookup for a row that has a session."""
        session = row.choice.session
        if self.controller is not None and session is not None:
            n, kept = len(row.proposal.tokens), row.n_accepted
            self._measured.lookup(result, n=n, kept=kept, rank=rank, rows=session.asked_rows)
            if result is LookupResult.LATE and session.asked_at is not None and session.replica is not None:
                late_s, sessions = self._clock() - session.asked_at, len(session.replica.sessions)
                self._measured.drafting.observe_late(late_s, proposed=n, rows=session.asked_rows, sessions=sessions)

    def verified(self, row: Decided) -> None:
        """The outcome of one row. The last of a choice is left out: an end cuts it anywhere."""
        session = row.choice.session
        if self.controller is None or session is None or session.replica is None or row.ended:
            return
        if session.limits is None or session.limits.k:
            drafted = row.proposal.source == "draft"
            self._measured.row(len(row.proposal.tokens), row.n_accepted, len(row.emitted), drafted=drafted)

    def waited(self, seconds: float, batch: int, k: int) -> None:
        """A wait for the chains of ``batch`` rows has ended."""
        if self.controller is not None:
            self._measured.drafting.observe_wait(seconds, batch, k)

    def round(self, watch: Stopwatch, rows: Sequence[Row], decided: Sequence[Decided]) -> None:
        """A round has ended."""
        if self.controller is None:
            return
        self.controller.round(
            RoundSample(
                now=watch.now,
                batch=len(decided),
                tokens=sum(row.n_tokens for row in rows),
                emitted=sum(len(result.emitted) for result in decided),
                seconds=watch.now - watch.began,
                waited=watch.phases["draft_wait"],
                attached=self._attached,
                decoding_only=len(decided) == len(rows) and all(row.n_run == 1 for row in rows),
            )
        )

    def gauge(self) -> None:
        """Bring the metrics up to date."""
        controller, metrics = self.controller, self._metrics
        if controller is None:
            return
        metrics.planned_k.set(controller.plan.k)
        metrics.planned_rows.set(controller.plan.rows)
        metrics.speculating.set({Stage.PLAIN: 0.0, Stage.PROBE: 0.5, Stage.ON: 1.0}[controller.stage])
        metrics.predicted_speed.labels("plan").set(controller.predicted)
        metrics.predicted_speed.labels("plain").set(controller.predicted_plain)
        for result, count in controller.take_probes().items():
            metrics.probes.labels(result).inc(count)
