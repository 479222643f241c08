"""What each row verifies next: lookup, the waiting rule, the local fallback, and the commits that say so.

A row that hits has its proposal at once. A row that does not either waits for a just-in-time chain, if the rule says
that this pays for the whole batch, or takes the n-gram fallback, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ssd_cluster.config import Fallback, TargetSettings
from ssd_cluster.link.messages import CommitRow
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.speculation.waiting import WaitEstimator, make_policy
from ssd_cluster.target.drafts import DraftPool
from ssd_cluster.target.finish import Accepted
from ssd_cluster.target.laws import await_laws
from ssd_cluster.target.pilot import Pilot
from ssd_cluster.target.sequence import Choice
from ssd_cluster.target.session import Ceilings, Session, SessionState
from ssd_cluster.target.times import RoundTimes
from ssd_cluster.types import LookupResult, Mode, Proposal

LocalFallback = Callable[[Sequence[int], int], Proposal]
"""Committed tokens and how many to propose -> a proposal of at most so many."""

_JIT = "jit"
_RATE = 0.1


@dataclass(slots=True)
class Decided:
    """What one row's verification gave.

    Attributes:
        choice: its tokens include ``emitted`` already.
        emitted: kept tokens and t*, cut at an end.
        proposal: what was verified.
        n_accepted: emitted tokens that had been proposed.
        accepted: how many were emitted, and the end of the choice if there is one.
        hit: the next proposal came from the cache, or none was to be had.
        owed: a block was asked for and has not come.
        lookup: how the cache was found; None where nothing was to be looked up.
        rank: place of t* among the guesses.
    """

    choice: Choice
    emitted: list[int]
    proposal: Proposal
    n_accepted: int
    accepted: Accepted
    hit: bool = True
    owed: bool = False
    lookup: LookupResult | None = None
    rank: int | None = None

    @property
    def ended(self) -> bool:
        return self.accepted.reason is not None


class Proposer:
    """Takes the outcomes of a round and leaves every unfinished choice with its next proposal.

    Args:
        settings: of the target; ``settings`` holds those of speculation, which may be exchanged between rounds.
        pool: draft sessions.
        inbox: waited on for chains.
        metrics: counters.
        times: measured T_v.
        pilot: what the controller allows.
        clock: seconds, monotonic.
        interrupted: True when a wait must end at once (stop).
        local: proposes for rows that do not wait, in place of the configured fallback; for benchmarks.
    """

    def __init__(
        self,
        settings: TargetSettings,
        pool: DraftPool,
        inbox: Inbox,
        metrics: TargetMetrics,
        times: RoundTimes,
        pilot: Pilot,
        clock: Callable[[], float],
        interrupted: Callable[[], bool],
        local: LocalFallback | None = None,
    ) -> None:
        self._local = local
        self.settings = settings.speculation
        self._synchronous = settings.mode is Mode.SD
        self._pool = pool
        self._inbox = inbox
        self._metrics = metrics
        self._times = times
        self._pilot = pilot
        self._clock = clock
        self._interrupted = interrupted
        self._mean_wait_s = math.inf
        self.estimator = WaitEstimator(make_policy(settings.speculation.miss_policy), settings.speculation.k)

    def propose(self, decided: Sequence[Decided]) -> list[Choice]:
        """Look up, decide, and send the commits of a round.

        Returns:
            The choices whose chain must be waited for (``wait``); all others have their proposal.
        """
        self._pilot.decide(decided)
        missing: list[Choice] = []
        for row in decided:
            if row.ended:
                row.choice.proposal = Proposal(len(row.choice.tokens))
            else:
                row.hit = self._look_up(row)
                if not row.hit and self._may_wait(row.choice):
                    missing.append(row.choice)
        unfinished = sum(not row.ended for row in decided)
        wait = bool(missing) and (self._synchronous or self._worth_waiting(unfinished, len(missing)))
        waiting = missing if wait else []
        commits: list[tuple[Session, CommitRow]] = []
        for row in decided:
            choice = row.choice
            if choice not in waiting:
                if row.owed and choice.session is not None:
                    self._pool.observe(choice.session, late=True)
                if not row.hit:
                    self._fall_back(choice)
            commit = self._commit(row, choice in waiting)
            if commit is not None:
                commits.append(commit)
        if commits:
            self._pool.send(commits)
        for row in decided:
            if row.ended and row.choice.session is not None:
                self._pool.forget(row.choice.session)
        return waiting

    def _worth_waiting(self, batch: int, missing: int) -> bool:
        return self._pilot.may_wait and self.estimator.should_wait(batch, missing)

    def wait(self, waiting: list[Choice], idle: Callable[[], bool] = lambda: False) -> None:
        """Wait until every chain is there, its session is lost, or the deadline has passed; then fall back.

        ``idle`` does a little work that a later round needs, and is False when there is none left.
        """
        if not waiting:
            return
        started = self._clock()
        deadline = started + self.settings.wait_ms / 1000
        overdue = started + min(self.settings.wait_ms / 2000, 2 * self._mean_wait_s)
        remaining, pulled = waiting, False
        while True:
            self._pool.receive()
            remaining = self._serve(remaining)
            now = self._clock()
            if not remaining or now >= deadline or self._interrupted():
                break
            if now >= overdue and not pulled:
                pulled = True
                self._pull(remaining, deadline - now)
            if not idle():
                self._inbox.wait((deadline if pulled else overdue) - now)
        for choice in remaining:
            if choice.session is not None:
                self._pool.observe(choice.session, late=True)
        self._give_up(remaining)
        self._observe_wait(self._clock() - started, waiting)

    def await_laws(self, sessions: Iterable[Session]) -> None:
        """Give the laws of the proposals that these sessions verify now the last moment to come."""
        await_laws(sessions, self._inbox, self._pool.receive, self._times, self._clock)

    def _look_up(self, row: Decided) -> bool:
        """Advance the session's cache; True if the choice has its proposal or can have none."""
        choice, session = row.choice, row.choice.session
        room = choice.draft_room()
        choice.proposal = Proposal(len(choice.tokens))
        if session is None or session.cache is None:
            return room == 0
        arrived = session.cache.arrived
        resolution = session.cache.resolve(row.emitted, room)
        if room == 0:
            return True
        hit = resolution.continuation is not None
        if hit and resolution.continuation is not None:
            choice.proposal = resolution.continuation.proposal(len(choice.tokens))
        if session.expecting and session.state is not SessionState.OPENING:
            self._count_lookup(choice, resolution.result)
            self._pilot.looked_up(row, resolution.result, resolution.rank)
            row.lookup, row.rank = resolution.result, resolution.rank
            row.owed = not (hit or arrived)
            if not row.owed:
                self._pool.observe(session, late=False)
        return hit

    def _count_lookup(self, choice: Choice, result: LookupResult) -> None:
        hit = result is LookupResult.HIT
        self._metrics.lookups.labels(result.value).inc()
        if choice.session is not None and choice.session.replica is not None:
            choice.session.replica.lookups[result.value] += 1
        self.estimator.observe_lookup(hit=hit)
        stats = choice.live.stats
        stats.cache_hits += hit
        stats.cache_misses += not hit

    @staticmethod
    def _may_wait(choice: Choice) -> bool:
        return choice.session is not None and choice.session.may_wait

    def _fall_back(self, choice: Choice) -> None:
        """Propose from the choice's own text, or nothing."""
        room = choice.draft_room()
        if room == 0:
            return
        if self._local is not None:
            choice.proposal = self._local(choice.tokens, room)
        elif self.settings.fallback is Fallback.NGRAM:
            choice.proposal = choice.fallback(self.settings, room)
        self._count_fallback(choice, choice.proposal.source)

    def _count_fallback(self, choice: Choice, source: str) -> None:
        self._metrics.fallbacks.labels(source).inc()
        choice.live.stats.fallbacks += 1

    def _commit(self, row: Decided, waits: bool) -> tuple[Session, CommitRow] | None:
        """The row that tells the draft about this round; a detached session is opened instead, if that is possible."""
        choice, session = row.choice, row.choice.session
        if session is None:
            return None
        tokens: Sequence[int] = row.emitted
        if session.replica is None:
            if row.ended or choice.n_left < 2 or not self._pool.may_open(session) or not self._pool.open(session):
                return None
            choice.proposal = choice.proposal.shortened(choice.draft_room())
            if not choice.proposal.tokens:
                return None
            tokens = ()
        ceilings = self._pool.ceilings(session, choice.n_left, self._due_us())
        deadline_us = int(self.settings.wait_ms * 1000) if waits else 0
        if waits:
            ceilings = Ceilings(min(ceilings.k, self._chain_k(choice)), ceilings.rows, ceilings.due_us)
        proposal = None if waits else choice.proposal
        return session, session.commit(tokens, proposal, ceilings, deadline_us=deadline_us, finish=row.ended)

    def _serve(self, waiting: list[Choice]) -> list[Choice]:
        """Give chains that have come to their choices and commit them; returns the choices that still wait."""
        remaining: list[Choice] = []
        lost: list[Choice] = []
        commits: list[tuple[Session, CommitRow]] = []
        for choice in waiting:
            session = choice.session
            if session is None or session.cache is None or not session.may_wait:
                lost.append(choice)
                continue
            continuation = session.cache.lookup(choice.draft_room())
            if continuation is None:
                remaining.append(choice)
                continue
            self._pool.observe(session, late=False)
            choice.proposal = continuation.proposal(len(choice.tokens))
            if not self._synchronous:
                self._count_fallback(choice, _JIT)
            ceilings = self._pool.ceilings(session, choice.n_left, self._due_us())
            commits.append((session, session.commit((), choice.proposal, ceilings)))
        if commits:
            self._pool.send(commits)
        self._give_up(lost)
        return remaining

    def _give_up(self, choices: list[Choice]) -> None:
        """No chain will be used: fall back, and tell the drafts that are still there what is verified instead."""
        commits: list[tuple[Session, CommitRow]] = []
        for choice in choices:
            session = choice.session
            self._fall_back(choice)
            if session is not None and session.replica is not None:
                ceilings = self._pool.ceilings(session, choice.n_left, self._due_us())
                commits.append((session, session.commit((), choice.proposal, ceilings)))
        if commits:
            self._pool.send(commits)

    def _observe_wait(self, seconds: float, waiting: Sequence[Choice]) -> None:
        self.estimator.observe_wait(seconds)
        self._pilot.waited(seconds, len(waiting), max(map(self._chain_k, waiting)))
        first = math.isinf(self._mean_wait_s)
        self._mean_wait_s = seconds if first else self._mean_wait_s + _RATE * (seconds - self._mean_wait_s)

    def _pull(self, waiting: list[Choice], left_s: float) -> None:
        for choice in waiting:
            if choice.session is not None:
                self._pool.pull(choice.session, self._chain_k(choice), int(left_s * 1e6))

    def _chain_k(self, choice: Choice) -> int:
        """Most tokens of a just-in-time chain."""
        room, wanted = choice.draft_room(), self.settings.chain_k
        return room if wanted is None else min(room, wanted)

    def _due_us(self) -> int:
        return int((self._times.verify_s or 0.0) * 1e6)
