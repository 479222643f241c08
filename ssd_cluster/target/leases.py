"""Leases: which draft replica of a shared pool a session may be opened on.

Whoever places replicas (Serve) grants a session a lease on one of them. The session on the link is the truth, its lease
the shadow that the placing side sees: one more session on that replica. Everything here but the lessor's reports runs
on the engine thread and never waits; a session without a lease decodes with its local fallback.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ssd_cluster.config import TargetSettings
from ssd_cluster.link.stream import Inbox
from ssd_cluster.target.links import Dialer, DraftLinks
from ssd_cluster.target.replica import DraftReplica, ReplicaState
from ssd_cluster.target.session import Session
from ssd_cluster.types import Mode

EXCLUDE_S = 5.0
_VISITOR = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """Where a lease leads: the replica's name where it was placed, its endpoint, and the incarnation to find there."""

    replica: str
    endpoint: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What to consider when a lease is granted: replicas that are linked already, those to avoid, and the rows asked
    for. ``exclude`` is a preference: a replica in it is granted when nothing else has room."""

    linked: tuple[str, ...]
    exclude: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Granted:
    lease: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class Revoked:
    """The replica wants the session to go elsewhere; the lease is still open."""

    lease: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease is over, or will not be granted."""

    lease: int
    reason: str


LeaseEvent = Granted | Revoked | Ended


class Lessor(Protocol):
    """Asks for leases and gives them back; no method blocks."""

    def acquire(self, session: int, lease: int, wish: Wish, report: Callable[[LeaseEvent], None]) -> None:
        """Ask for lease number ``lease`` for a session; ``report`` may be called from any thread, ``Ended`` last."""

    def release(self, lease: int) -> None:
        """Give a lease back, or stop asking for it; nothing more has to be reported of it."""

    def close(self) -> None:
        """Give everything back."""


@dataclass(frozen=True, slots=True)
class Leasing:
    """How a target reaches a pool of drafts: who grants leases, and how to connect to where they lead."""

    lessor: Lessor
    dial: Dialer


@dataclass(slots=True, eq=False)
class Lease:
    """One lease: asked for until ``replica`` is known, used once its session is open there.

    ``leaving``: the session should go elsewhere. ``over``: it has ended although the session is still open.
    """

    number: int
    session: Session | None
    replica: DraftReplica | None = None
    granted_at: float = 0.0
    leaving: bool = False
    over: bool = False


class LeaseDesk:
    """The leases of one target: at most one in use and one asked for per session.

    Args:
        leasing: the lessor, and how to connect.
        links: where granted replicas are linked.
        inbox: woken when something is reported.
        settings: of the target.
    """

    def __init__(self, leasing: Leasing, links: DraftLinks, inbox: Inbox, settings: TargetSettings) -> None:
        self.rows = settings.speculation.rows if settings.mode is Mode.SSD else 0
        self.visit_wanted = False
        self._leasing = leasing
        self._links = links
        self._inbox = inbox
        self._ready_within_s = 2 * settings.link.connect_timeout_s
        self._retry_s = settings.breaker.retry_s
        self._asked: dict[int, Lease] = {}
        self._used: dict[int, Lease] = {}
        self._by_number: dict[int, Lease] = {}
        self._excluded: dict[str, float] = {}
        self._events: deque[LeaseEvent] = deque()
        self._numbers = itertools.count(1)
        self._visit_at = 0.0

    @property
    def counts(self) -> tuple[int, int]:
        """Leases in use, and leases that are asked for or not used yet."""
        return len(self._used), len(self._asked)

    def want(self, session: Session, now: float) -> None:
        """Ask for a lease, unless that has been done; what is asked for stays asked for until it is granted."""
        if session.id not in self._asked and not session.refused and now >= session.retry_at:
            self._leave_lost(session, now)
            self._ask(session.id, session, now)

    def offer(self, session: Session, now: float) -> DraftReplica | None:
        """The replica that a granted lease lets this session be opened on now."""
        lease = self._asked.get(session.id)
        if lease is None or lease.replica is None:
            return None
        replica = lease.replica
        if replica.name in session.elsewhere:  # nothing else has room: one draft alone would do the same work
            self._give_back(lease, now)
            session.retry_at = max(session.retry_at, now + EXCLUDE_S)
            return None
        if replica.has_room(self.rows > 0) and replica.breaker.admit(now):
            return replica
        if self._hopeless(lease, replica, now):
            self.avoid(replica, now)
            self._give_back(lease, now)
            session.retry_at = max(session.retry_at, now + self._retry_s)
        return None

    def opened(self, session: Session, now: float) -> None:
        """The session has been opened where its lease led; the lease before that is given back."""
        before = self._used.pop(session.id, None)
        if before is not None:
            self._give_back(before, now)
        lease = self._asked.pop(session.id, None)
        if lease is not None:
            self._used[session.id] = lease

    def drop(self, session: Session, now: float) -> None:
        """The session is over or detached: give back all its leases."""
        for leases in (self._used, self._asked):
            lease = leases.get(session.id)
            if lease is not None:
                self._give_back(lease, now)

    def leave(self, session: Session, now: float) -> None:
        """The session is to be opened elsewhere; it stays where it is until then."""
        lease = self._used.get(session.id)
        if lease is not None and not lease.leaving:
            lease.leaving = True
            self.avoid(lease.replica, now)

    def avoid(self, replica: DraftReplica | None, now: float) -> None:
        """Prefer other replicas for a while."""
        if replica is not None:
            self._excluded[replica.name] = now + EXCLUDE_S

    def tick(self, now: float) -> list[Session]:
        """Take reports in, ask anew for what must move; sessions that can be opened elsewhere now."""
        while self._events:
            self._reported(self._events.popleft(), now)
        self._visit(now)
        for lease in list(self._used.values()):
            session = lease.session
            if session is None:
                continue
            self._leave_lost(session, now)
            if lease.leaving and session.replica is not None:
                self.want(session, now)
        moving = (self._used[number] for number in self._asked if number in self._used)
        return [lease.session for lease in list(moving) if lease.session is not None and self.offer(lease.session, now)]

    def close(self) -> None:
        """Give everything back; nothing is asked for any more."""
        self._asked.clear()
        self._used.clear()
        self._by_number.clear()
        self._leasing.lessor.close()

    # --- one lease

    def _ask(self, key: int, session: Session | None, now: float) -> None:
        lease = Lease(next(self._numbers), session)
        self._asked[key] = self._by_number[lease.number] = lease
        wish = self._wish(now, session.elsewhere if session is not None else set())
        self._leasing.lessor.acquire(key, lease.number, wish, self._report)

    def _leave_lost(self, session: Session, now: float) -> None:
        """Give the lease of a session back whose stream has ended, and prefer other replicas for a while."""
        lease = self._used.get(session.id)
        if lease is not None and session.replica is not lease.replica:
            self.avoid(lease.replica, now)
            self._give_back(lease, now)

    def _wish(self, now: float, elsewhere: set[str]) -> Wish:
        self._excluded = {name: until for name, until in self._excluded.items() if until > now}
        barred = self._excluded.keys() | elsewhere
        linked = tuple(r.name for r in self._links.replicas if r.state is ReplicaState.READY and r.name not in barred)
        return Wish(linked, tuple(sorted(barred)), self.rows)

    def _report(self, event: LeaseEvent) -> None:
        self._events.append(event)
        self._inbox.wake()

    def _reported(self, event: LeaseEvent, now: float) -> None:
        lease = self._by_number.get(event.lease)
        if lease is None or (isinstance(event, Granted) and lease.replica is not None):
            return
        if isinstance(event, Granted):
            grant = event.grant
            lease.granted_at = now
            lease.replica = self._links.lease(grant.replica, grant.endpoint, grant.incarnation, self._leasing.dial)
            return
        self.avoid(lease.replica, now)
        if isinstance(event, Ended):
            del self._by_number[lease.number]
            lease.over = True
        if self._used.get(self._key(lease)) is lease:
            lease.leaving = True  # rounds go on while the stream lives
            return
        self._give_back(lease, now)
        if lease.session is not None:
            lease.session.retry_at = max(lease.session.retry_at, now + self._retry_s)
        self._visit_at = now + self._retry_s

    def _hopeless(self, lease: Lease, replica: DraftReplica, now: float) -> bool:
        """Whether it is better to ask for another lease than to wait until this one can be used."""
        connecting = replica.state in (ReplicaState.DOWN, ReplicaState.CONNECTING, ReplicaState.GREETING)
        return not connecting or now - lease.granted_at > self._ready_within_s

    def _give_back(self, lease: Lease, now: float) -> None:
        key = self._key(lease)
        for leases in (self._used, self._asked):
            if leases.get(key) is lease:
                del leases[key]
        self._by_number.pop(lease.number, None)
        if not lease.over:
            self._leasing.lessor.release(lease.number)
        if lease.replica is not None:
            self._links.unlease(lease.replica, now)
            lease.replica = None

    @staticmethod
    def _key(lease: Lease) -> int:
        return lease.session.id if lease.session is not None else _VISITOR

    def _visit(self, now: float) -> None:
        """Bring a link up before the first session wants one, if that was asked for."""
        lease = self._asked.get(_VISITOR)
        if lease is None:
            if self.visit_wanted and now >= self._visit_at:
                self._ask(_VISITOR, None, now)
        elif not self.visit_wanted or (lease.replica is not None and self._hopeless(lease, lease.replica, now)):
            self._visit_at = now + self._retry_s
            self._give_back(lease, now)
