"""Where sessions are opened: on a given replica with room, or where a lease leads; and how they move."""

from __future__ import annotations

from collections.abc import Callable

from ssd_cluster.config import SpeculationSettings
from ssd_cluster.link.messages import Close, CommitBatch
from ssd_cluster.speculation.cache import SpeculationCache
from ssd_cluster.target.leases import LeaseDesk
from ssd_cluster.target.links import DraftLinks
from ssd_cluster.target.replica import DraftReplica
from ssd_cluster.target.session import Ceilings, Session


class Openings:
    """Opens and moves the sessions of one target; on the engine thread, at round boundaries.

    Args:
        links: connections to the replicas.
        desk: leases; None: the replicas need none.
        speculation: of the target.
        rows: rows a session may ask for; 0 in mode ``sd``.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        links: DraftLinks,
        desk: LeaseDesk | None,
        speculation: SpeculationSettings,
        rows: int,
        clock: Callable[[], float],
    ) -> None:
        self.desk = desk
        self.rows = rows
        self._links = links
        self._speculation = speculation
        self._clock = clock

    def retune(self, rows: int) -> None:
        """Ask for so many rows per session from now on."""
        self.rows = rows
        if self.desk is not None:
            self.desk.rows = rows

    def open(self, session: Session) -> bool:
        """Open a detached session; False if it cannot be opened now. A lease it needs is then asked for."""
        replica = self._pick(session, exclude=None)
        if replica is None:
            return False
        self._open_on(session, replica)
        return session.replica is replica

    def move(self, session: Session, replica: DraftReplica) -> None:
        """Open elsewhere, then close at ``replica``; until there is another one the session stays where it is."""
        if self.desk is not None:
            self.desk.leave(session, self._clock())
            return
        other = self._pick(session, exclude=replica)
        if other is not None:
            self._move_to(session, other)

    def reopen(self, session: Session, replica: DraftReplica) -> None:
        """Open with a new epoch and, if a proposal is being verified, tell which one."""
        inflight = session.inflight
        self._open_on(session, replica)
        known = 0 < len(inflight.tokens) <= replica.k_max and inflight.base_len == len(session.terms.tokens)
        if session.replica is replica and known:
            ceilings = self.ceilings(session, session.terms.max_len - inflight.base_len, 0)
            row = session.commit((), inflight, ceilings)
            self._links.send(replica, CommitBatch((row,)), self._clock())

    def drop(self, session: Session) -> None:
        """The session is over or detached: it needs no lease any more."""
        if self.desk is not None:
            self.desk.drop(session, self._clock())

    def avoid(self, replica: DraftReplica) -> None:
        """This replica is late or has no room: prefer others for a while."""
        if self.desk is not None:
            self.desk.avoid(replica, self._clock())

    def tick(self) -> None:
        """Move the sessions whose leases say so."""
        now = self._clock()
        for session in self.desk.tick(now) if self.desk is not None else ():
            if session.replica is None:
                continue  # opened by its next round
            other = self._pick(session, exclude=None)
            if other is session.replica and self.desk is not None:
                self.desk.opened(session, now)
            elif other is not None:
                self._move_to(session, other)

    def ceilings(self, session: Session, n_left: int, due_us: int) -> Ceilings:
        """What the next commit allows.

        Args:
            session: an open session.
            n_left: tokens the choice may still emit; a block serves the round after the next one, so the last two
                tokens need none.
            due_us: expected time until the verification that starts now ends. The block must have arrived by then, and
                the draft counts from when the commit arrives, so that it is told a round trip less.
        """
        replica = session.replica
        k = min(session.terms.k, replica.k_max) if replica is not None else 0
        rows = replica.rows_each(self.rows) if replica is not None and n_left > 2 else 0
        trip_us = int(1e6 * replica.round_trip_s) if replica is not None else 0
        return Ceilings(k, rows, max(0, due_us - trip_us))

    def _move_to(self, session: Session, other: DraftReplica) -> None:
        before = session.replica
        if before is not None:
            before.sessions.pop(session.id, None)
        self.reopen(session, other)
        if before is not None:
            self._links.send(before, Close((session.id,)), self._clock())

    def _open_on(self, session: Session, replica: DraftReplica) -> None:
        now = self._clock()
        rows = min(self.rows, replica.rows_each(self.rows, len(replica.sessions) + 1))
        cache = SpeculationCache(len(session.terms.tokens), self._speculation.trie_nodes)
        replica.sessions[session.id] = session
        message = session.open(replica, cache, rows)
        if self.desk is not None:
            self.desk.opened(session, now)
        self._links.send(replica, message, now)

    def _pick(self, session: Session, exclude: DraftReplica | None) -> DraftReplica | None:
        """Where the session's lease leads, or the emptiest replica with room whose breaker lets a session through."""
        now = self._clock()
        if self.desk is not None:
            found = self.desk.offer(session, now)
            if found is None:
                self.desk.want(session, now)
            return found
        barred = session.elsewhere | ({exclude.name} if exclude is not None else set())
        free = [r for r in self._links.replicas if r.name not in barred and r.has_room(self.rows > 0)]
        free.sort(key=lambda r: len(r.sessions) / r.session_credit)
        return next((replica for replica in free if replica.breaker.admit(now)), None)
