"""Counts of the round loop: metrics, per-request statistics, and the estimates that decisions use."""

from __future__ import annotations

from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.speculation.waiting import WaitEstimator
from ssd_cluster.target.alarm import AcceptanceAlarm
from ssd_cluster.target.pilot import Pilot
from ssd_cluster.target.proposer import Decided
from ssd_cluster.target.scheduler import Row
from ssd_cluster.target.sequence import LiveRequest
from ssd_cluster.target.times import PHASES, VERIFY_PHASES, RoundTimes, Stopwatch
from ssd_cluster.types import LookupResult


class Account:
    """Feeds metrics, ``RoundTimes`` and the wait estimator; called after the commit has left."""

    def __init__(self, metrics: TargetMetrics, times: RoundTimes, estimator: WaitEstimator, pilot: Pilot) -> None:
        self._metrics = metrics
        self._pilot = pilot
        self._times = times
        self._estimator = estimator
        self._alarm = AcceptanceAlarm(metrics)
        self._phases = {phase: metrics.phase_seconds.labels(phase) for phase in PHASES}

    def hit_path(self, seconds: float) -> None:
        """Time from the end of a forward to the start of this one."""
        self._times.hit_path.append(seconds)

    def first_token(self, live: LiveRequest) -> None:
        """A request has its first token."""
        if live.prefilled_at is not None:
            self._metrics.ttft.observe(live.prefilled_at - live.submitted_at)
        self._metrics.prompt_tokens.inc(len(live.request.prompt_token_ids))
        self._metrics.cached_tokens.inc(live.cached_tokens)

    def verified(self, result: Decided) -> None:
        """Count the outcome of one row."""
        metrics, n_emitted, n_proposed = self._metrics, len(result.emitted), len(result.proposal.tokens)
        metrics.generation_tokens.inc(n_emitted)
        self._pilot.verified(result)
        if result.choice.k:
            self._estimator.observe_row(drafted=result.proposal.source == "draft", tokens=n_emitted)
        if not n_proposed:
            return
        kept = result.n_accepted
        if result.proposal.source == "draft":
            self._alarm.observe(n_proposed, kept)
        metrics.drafts.inc()
        metrics.draft_tokens.inc(n_proposed)
        metrics.accepted_tokens.inc(kept)
        for position in range(kept):
            metrics.accepted_per_position.labels(str(position)).inc()
        stats = result.choice.live.stats
        stats.num_spec_steps += 1
        stats.num_draft_tokens += n_proposed
        stats.num_accepted_draft_tokens += kept
        histogram = stats.acceptance_histogram
        histogram.extend([0] * (max(kept, n_proposed) + 1 - len(histogram)))
        histogram[kept] += 1

    def round(self, watch: Stopwatch, rows: list[Row], decided: list[Decided]) -> None:
        """Count one round and its time."""
        self._metrics.rounds.inc()
        for phase, seconds in watch.phases.items():
            self._phases[phase].inc(seconds)
        if len(decided) == len(rows) and all(row.n_run == 1 for row in rows):
            self._times.add(watch.phases, sum(len(result.emitted) for result in decided))
            if all(result.lookup is LookupResult.HIT for result in decided):
                self._times.hit_rounds.append(watch.now - watch.began)
            if (plan := self._pilot.plan) is not None:
                self._times.plans[plan.k, plan.rows, plan.wait] += 1
            self._estimator.observe_verify(sum(watch.phases[phase] for phase in VERIFY_PHASES))
        self._pilot.round(watch, rows, decided)
        if self._times.trace is not None:
            self._times.trace.round(watch, rows, decided)
