"""One round of the target: forward, verify, commit, then everything that can happen later.

proposals -> one ragged forward over [last token, proposal] of all rows, prompt chunks beside them -> laws of ratio
kinds -> processors -> rule by proposal kind -> finish logic, token by token -> lookup, commit sent -> KV bookkeeping,
text, events -> wait for chains, if the rule says so
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from torch import Tensor

from ssd_cluster.errors import NumericalError
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.model.runner import ModelRunner
from ssd_cluster.target.account import Account
from ssd_cluster.target.drafts import DraftPool
from ssd_cluster.target.pilot import Pilot
from ssd_cluster.target.proposer import Decided, Proposer
from ssd_cluster.target.scheduler import Row, Scheduler
from ssd_cluster.target.sequence import Choice, LiveRequest
from ssd_cluster.target.session import SessionState
from ssd_cluster.target.times import RoundTimes, Stopwatch
from ssd_cluster.target.verification import Verifier, by_ratio, proposal_of
from ssd_cluster.types import FinishReason
from ssd_cluster.verify import Outcome

logger = logging.getLogger(__name__)


class RoundLoop:
    """Runs rounds over the choices of a scheduler.

    Args:
        runner: the target model.
        scheduler: queues.
        pool: draft sessions.
        proposer: decides what is verified next.
        pilot: what the controller is told and allows.
        metrics: counters.
        times: breakdown of the time.
        verifier: rules, and what they need.
        clock: seconds, monotonic.
        ended: called with each choice that has ended, after its last event.
        failed: called with a request that cannot go on, and why; ends all its choices.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        pool: DraftPool,
        proposer: Proposer,
        pilot: Pilot,
        metrics: TargetMetrics,
        times: RoundTimes,
        verifier: Verifier,
        clock: Callable[[], float],
        ended: Callable[[Choice, FinishReason], None],
        failed: Callable[[LiveRequest, str], None],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._pool = pool
        self._proposer = proposer
        self._pilot = pilot
        self._account = Account(metrics, times, proposer.estimator, pilot)
        self._verifier = verifier
        self._clock = clock
        self._ended = ended
        self._failed = failed
        self._forward_ended: float | None = None
        self._round_ended: float | None = None

    def run(self) -> bool:
        """Run one round; False if there was nothing to run."""
        watch = Stopwatch(self._clock() if self._round_ended is None else self._round_ended)
        rows = self._scheduler.plan()
        if not rows:
            self._forward_ended = self._round_ended = None
            return False
        self._open_sessions(rows)
        batch = ForwardBatch([row.span() for row in rows])
        watch.lap("other", self._clock())
        self._sample_hit_path(watch)
        logits = self._runner.forward(batch)
        watch.lap("forward", self._clock())
        self._forward_ended = watch.now
        deciding = [row for row in rows if row.decides]
        if any(by_ratio(row) for row in deciding):
            self._await_laws(deciding)
            watch.lap("draft_wait", self._clock())
        results = self._outcomes(deciding, logits, lambda phase: watch.lap(phase, self._clock())) if deciding else []
        rows = [row for row in rows if not row.choice.ended]
        watch.lap("verify", self._clock())
        self._pool.receive()
        watch.lap("link", self._clock())
        decided = [self._accept(row, row.proposed[: outcome.kept], outcome.next_token) for row, outcome in results]
        watch.lap("other", self._clock())
        waiting = self._proposer.propose(decided)
        watch.lap("link", self._clock())
        self._keep_books(rows, decided)
        watch.lap("other", self._clock())
        if waiting or not all(row.hit for row in decided if not row.ended):
            self._forward_ended = None
        self._proposer.wait(waiting, lambda: any(row.choice.draw_ahead() for row in decided))
        watch.lap("draft_wait", self._clock())
        self._round_ended = watch.now
        self._account.round(watch, rows, decided)
        return True

    def _outcomes(self, rows: list[Row], logits: Tensor, lap: Callable[[str], None]) -> list[tuple[Row, Outcome]]:
        """Rows with their outcomes. A request whose logits leave nothing to draw ends alone, with an error."""
        try:
            return list(zip(rows, self._verifier.outcomes(rows, logits, lap), strict=True))
        except NumericalError:
            pass
        found: list[tuple[Row, Outcome]] = []
        first = 0
        for row in rows:
            of_row = logits[first : first + row.n_proposed + 1]
            first += len(of_row)
            try:
                found.append((row, self._verifier.outcomes([row], of_row, lap)[0]))
            except NumericalError as error:
                logger.error("request_failed request=%s error=%r", row.choice.live.request.request_id, error.message)
                self._failed(row.choice.live, f"the model's output cannot be sampled from: {error.message}")
        return [(row, outcome) for row, outcome in found if not row.choice.ended]

    def _open_sessions(self, rows: list[Row]) -> None:
        """Open sessions while the prompt is prefilled: the draft guesses the first token meanwhile."""
        for row in rows:
            session = row.choice.session
            if session is None or session.state is not SessionState.DETACHED or row.choice.proposal.tokens:
                continue
            self._pilot.admit(row.choice)
            if row.n_run > 1 and row.choice.n_left > 1 and self._pool.may_open(session):
                self._pool.open(session)

    def _await_laws(self, rows: list[Row]) -> None:
        """Laws travel while the forward runs; the last of them may need a moment more."""
        sessions = [row.choice.session for row in rows if by_ratio(row) and row.choice.session is not None]
        self._proposer.await_laws(sessions)

    def _sample_hit_path(self, watch: Stopwatch) -> None:
        if self._forward_ended is not None:
            self._account.hit_path(watch.now - self._forward_ended)

    @staticmethod
    def _accept(row: Row, kept: tuple[int, ...], next_token: int) -> Decided:
        """Run the finish logic over a burst and commit what is emitted."""
        choice = row.choice
        burst = [*kept, next_token]
        accepted = choice.output.accept(burst)
        emitted = burst[: accepted.count]
        proposal = proposal_of(row)
        choice.tokens.extend(emitted)
        return Decided(choice, emitted, proposal, min(len(kept), accepted.count), accepted)

    def _keep_books(self, rows: list[Row], decided: list[Decided]) -> None:
        """KV bookkeeping, noise for the next round, text and events; none of it delays a commit."""
        for row in rows:
            blocks, tokens = row.choice.blocks, row.choice.tokens
            end = len(tokens) - 1 if row.decides else blocks.length + row.n_run
            blocks.advance(tokens[blocks.length : end])
            blocks.truncate(end)
        for result in decided:
            self._publish(result)
        for result in decided:
            if not result.ended:
                result.choice.draw_next()

    def _publish(self, result: Decided) -> None:
        """Hand the new tokens to the client and let an ended choice go."""
        choice, accepted = result.choice, result.accepted
        live = choice.live
        if live.prefilled_at is None:
            live.prefilled_at = self._clock()
            self._account.first_token(live)
        self._account.verified(result)
        text = choice.output.take_text()
        live.emit_delta(choice.index, tuple(result.emitted), text, accepted.reason, accepted.stop_reason)
        if accepted.reason is not None:
            self._ended(choice, accepted.reason)
