"""The draft sessions of one target: where they live, what is sent for them, how refusals are answered.

Everything here runs on the engine thread and never waits. Whatever a draft does or does not do, a session only ever
turns ``DETACHED``, and its row goes on with the local fallback.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ssd_cluster.config import TargetSettings
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    Close,
    CommitBatch,
    CommitRow,
    Law,
    Load,
    Message,
    Nack,
    NackCode,
    Opened,
    Pull,
)
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.target.blocktimes import BlockTimes
from ssd_cluster.target.laws import LawDesk
from ssd_cluster.target.leases import LeaseDesk
from ssd_cluster.target.links import DraftLinks
from ssd_cluster.target.openings import Openings
from ssd_cluster.target.replica import DraftReplica, ReplicaState
from ssd_cluster.target.session import Ceilings, Session, SessionState, SessionTerms
from ssd_cluster.target.shards import Shards
from ssd_cluster.types import Mode

logger = logging.getLogger(__name__)

_REFUSALS = frozenset({NackCode.TOO_LONG, NackCode.MISMATCH, NackCode.BAD_TOKEN})
_REOPENINGS = frozenset({NackCode.UNKNOWN, NackCode.CONFLICT})


class DraftPool:
    """Sessions over the draft replicas of one target.

    Args:
        links: connections to the replicas.
        desk: leases, if the replicas are those of a shared pool.
        settings: of the target.
        vocabulary: ids from here on are invalid in blocks.
        laws: takes the laws of ratio kinds in.
        metrics: counters of this target.
        clock: seconds, monotonic.
        rng: session ids.

    Attributes:
        times: how long the drafts take.
        openings: where sessions are opened, and how many rows they ask for.
    """

    def __init__(
        self,
        links: DraftLinks,
        desk: LeaseDesk | None,
        settings: TargetSettings,
        vocabulary: int,
        laws: LawDesk,
        metrics: TargetMetrics,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self.links = links
        rows = settings.speculation.rows if settings.mode is Mode.SSD else 0
        self.openings = Openings(links, desk, settings.speculation, rows, clock)
        self._breaker = settings.breaker
        self._vocabulary = vocabulary
        self._laws = laws
        self._metrics = metrics
        self._clock = clock
        self._shards = Shards(settings.speculation.shards, lambda: rng.getrandbits(64))
        self._rng = rng
        self._logged: set[str] = set()
        self.times = BlockTimes()

    @property
    def leases(self) -> LeaseDesk | None:
        return self.openings.desk

    @property
    def usable(self) -> bool:
        """Whether there are drafts at all, be they ready or not."""
        return self.leases is not None or bool(self.links.replicas)

    @property
    def ready(self) -> bool:
        """Whether any replica can be used."""
        return any(replica.state is ReplicaState.READY for replica in self.links.replicas)

    @contextmanager
    def visiting(self) -> Iterator[None]:
        """Inside, a leased replica is linked although no session wants one; for any thread."""
        if self.leases is not None:
            self.leases.visit_wanted = True
        try:
            yield
        finally:
            if self.leases is not None:
                self.leases.visit_wanted = False

    def shut(self) -> None:
        """The target stops: give all leases back, close every link."""
        if self.leases is not None:
            self.leases.close()
        self.links.close()

    def session(self, terms: SessionTerms) -> Session:
        """A new handle, not opened yet."""
        return self._shards.join(Session(self._rng.getrandbits(64), terms))

    def may_open(self, session: Session) -> bool:
        """Whether it is worth calling ``open`` for a detached session now."""
        if session.state is not SessionState.DETACHED or session.refused or not session.may_attach:
            return False
        return self._clock() >= session.retry_at

    def open(self, session: Session) -> bool:
        """Open a detached session where there is room; False if there is none now."""
        self.times.asked(session, self._clock())
        return self.openings.open(session)

    def ceilings(self, session: Session, n_left: int, due_us: int) -> Ceilings:
        """What the next commit allows (``Openings.ceilings``)."""
        return self.openings.ceilings(session, n_left, due_us)

    def send(self, rows: Iterable[tuple[Session, CommitRow]]) -> None:
        """Send commit rows, and what partner sessions must hear of them; one frame per replica."""
        now = self._clock()
        frames: dict[int, tuple[DraftReplica, list[CommitRow]]] = {}
        for session, row in self._shards.follow(self, rows):
            if session.replica is not None:
                self.times.asked(session, now, row)
                frames.setdefault(id(session.replica), (session.replica, []))[1].append(row)
        for replica, batch in frames.values():
            self.links.send(replica, CommitBatch(tuple(batch)), now)

    def pull(self, session: Session, k: int, deadline_us: int) -> None:
        """Ask once more for an overdue block."""
        if session.replica is not None:
            wanted = Pull(session.id, session.epoch, len(session.terms.tokens), k, deadline_us)
            self.links.send(session.replica, wanted, self._clock())

    def forget(self, session: Session) -> None:
        """The choice has ended and its last commit has said so."""
        for partner in session.partners:
            self.close(partner)
        if session.replica is not None:
            session.replica.sessions.pop(session.id, None)
        session.detach()
        self.openings.drop(session)

    def close(self, session: Session, retry_at: float = 0.0) -> None:
        """End a session that the draft does not know to be over (abort, detach)."""
        replica = session.replica
        self.forget(session)
        session.detach(retry_at)
        if replica is not None:
            self.links.send(replica, Close((session.id,)), self._clock())

    def observe(self, session: Session, late: bool) -> None:
        """Count a round for which a block was asked; sessions of a replica that is late too often are detached."""
        replica = session.replica
        if replica is None or session.state is SessionState.OPENING:
            return
        now = self._clock()
        session.observe(late)
        if replica.breaker.record(late, now):
            logger.warning("draft_late replica=%s sessions=%d", replica.name, len(replica.sessions))
            self._metrics.draft_failures.labels("late").inc()
            self.openings.avoid(replica)
            for other in list(replica.sessions.values()):
                self.close(other)
        elif session.late_rounds >= self._breaker.window:
            self.openings.avoid(replica)
            self.close(session, now + self._breaker.retry_s)

    def receive(self) -> None:
        """Take in everything that has arrived. Sessions must be at their committed length."""
        now = self._clock()
        for replica, message in self.links.receive(now):
            self._handle(replica, message, now)

    def tick(self) -> None:
        """Connections, leases and byte counters; call it every round and when idle."""
        self.links.tick(self._clock())
        self.openings.tick()

    def _handle(self, replica: DraftReplica, message: Message, now: float) -> None:
        if isinstance(message, BlockBatch):
            for block in message.blocks:
                self._take(replica, block)
        elif isinstance(message, Law):
            session = self._current(replica, message.session, message.epoch)
            if session is not None:
                self._laws.take(session, message)
        elif isinstance(message, Opened):
            session = self._current(replica, message.session, message.epoch)
            if session is not None and session.state is SessionState.OPENING:
                session.state = SessionState.ATTACHED
                self.times.opened(session, replica)
        elif isinstance(message, Nack):
            session = self._current(replica, message.session, message.epoch)
            if session is not None:
                self._refused(session, replica, message, now)
        elif isinstance(message, Load):
            self._obey(replica, now)
        else:
            self._metrics.link_dropped.labels("unexpected").inc()

    def _take(self, replica: DraftReplica, block: Block) -> None:
        session = self._current(replica, block.session, block.epoch)
        if session is None or session.cache is None:
            return
        valid = tuple(b for b in block.branches if b.k >= 0 and self._known(b.t_star, b.tokens))
        if len(valid) < len(block.branches):
            self._metrics.link_dropped.labels("invalid").inc()
            if not valid:
                return
            block = Block(block.session, block.epoch, block.block_seq, block.base_len, block.fingerprint, valid)
        self.times.came(session, replica, block)
        session.answered = block.fingerprint
        stale = session.cache.add_block(block, session.terms.kind)
        if stale and stale == len(valid):
            self._metrics.link_dropped.labels("stale").inc()
        elif session.state is SessionState.OPENING:
            session.state = SessionState.ATTACHED

    def _known(self, t_star: int, tokens: tuple[int, ...]) -> bool:
        vocabulary = self._vocabulary
        return 0 <= t_star < vocabulary and all(0 <= token < vocabulary for token in tokens)

    def _current(self, replica: DraftReplica, session_id: int, epoch: int) -> Session | None:
        """The live session that a message is about; older epochs are dropped silently, the rest is counted."""
        session = replica.sessions.get(session_id)
        if session is None or epoch > session.epoch:
            self._metrics.link_dropped.labels("unknown_session").inc()
            return None
        return session if epoch == session.epoch else None

    def _refused(self, session: Session, replica: DraftReplica, nack: Nack, now: float) -> None:
        """React to a refusal as rule 10 says."""
        code = nack.code
        self._metrics.draft_failures.labels(code.value).inc()
        if code is NackCode.EVICTED:
            session.state = SessionState.OPENING
        elif code is NackCode.GAP and 0 <= nack.have_len <= len(session.terms.tokens):
            self._catch_up(session, nack.have_len)
        elif code in _REOPENINGS or code is NackCode.GAP:
            if session.may_reopen(now):
                self.openings.reopen(session, replica)
            else:
                self._refuse(session, f"{code.value} three times")
        elif code in _REFUSALS:
            self._refuse(session, code.value)
        else:
            pause = max(nack.retry_after_ms / 1000, self._breaker.retry_s)
            self.openings.avoid(replica)
            self.forget(session)
            session.detach(now + pause)
            if code is NackCode.DRAINING:
                self.openings.move(session, replica)

    def _refuse(self, session: Session, why: str) -> None:
        """No draft for this choice any more."""
        if why not in self._logged:
            self._logged.add(why)
            logger.warning("draft_session_refused reason=%r (logged once)", why)
        self.close(session)
        session.refused = True

    def _catch_up(self, session: Session, have_len: int) -> None:
        """One commit with everything the draft lacks, and the proposal in flight once more."""
        ceilings = self.ceilings(session, session.terms.max_len - len(session.terms.tokens), 0)
        row = session.commit(session.terms.tokens[have_len:], session.inflight, ceilings)
        self.send([(session, row)])

    def _obey(self, replica: DraftReplica, now: float) -> None:
        """Credits shrank or the draft drains: give up the lowest priority, newest first, or move."""
        if replica.draining:
            for session in list(replica.sessions.values()):
                self.openings.move(session, replica)
            return
        sessions = sorted(replica.sessions.values(), key=lambda s: s.terms.priority, reverse=True)
        while sessions and (
            len(sessions) > replica.session_credit or (self.openings.rows and replica.rows_each(1, len(sessions)) < 1)
        ):
            self.close(sessions.pop(), now + self._breaker.retry_s)
