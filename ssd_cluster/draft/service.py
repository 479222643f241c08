"""What each message of a target does (protocol.md): handshake, opens, commits, pulls, closes."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.builds import ChainBuild, TreeBuild
from ssd_cluster.draft.leases import LeaseBook
from ssd_cluster.draft.load import count_traffic
from ssd_cluster.draft.outcomes import OutcomeObserver
from ssd_cluster.draft.post import LawPost
from ssd_cluster.draft.quotas import OverQuota, Quotas
from ssd_cluster.draft.sampler import RowSampler
from ssd_cluster.draft.session import OpenLimits, Session, check_open, open_session
from ssd_cluster.draft.table import Peer, SessionTable
from ssd_cluster.errors import PairMismatch
from ssd_cluster.link.handshake import check_pair
from ssd_cluster.link.messages import (
    Attach,
    Close,
    CommitBatch,
    CommitRow,
    Hello,
    Message,
    NackCode,
    Open,
    Opened,
    Pull,
    StreamClosed,
    Welcome,
)
from ssd_cluster.link.stream import Stream
from ssd_cluster.metrics import DraftMetrics
from ssd_cluster.types import RATIO_KINDS

log = logging.getLogger(__name__)


class DraftService:
    """Applies messages to the session table; building and pushing happen at step boundaries, elsewhere.

    Args:
        table: peers and sessions.
        welcome: what this draft says of itself now; read at every Hello.
        sampler: makes the sampling state of a new session.
        observer: learns from outcomes.
        metrics: counters.
        settings: quotas, size of laws.
        post: sends laws.
        leases: a session is only opened under a lease; None: any target may open sessions.

    Attributes:
        draining: new sessions are sent elsewhere.
        renewed: sessions with a new round since this was last emptied.
        pulled: sessions whose overdue block was asked for since this was last emptied.
    """

    def __init__(
        self,
        table: SessionTable,
        welcome: Callable[[], Welcome],
        sampler: RowSampler,
        observer: OutcomeObserver,
        metrics: DraftMetrics,
        settings: DraftSettings,
        post: LawPost,
        leases: LeaseBook | None = None,
    ) -> None:
        self._leases = leases
        self.draining = False
        self.renewed: dict[Session, None] = {}
        self.pulled: dict[Session, None] = {}
        self._table = table
        self._welcome = welcome
        self._sampler = sampler
        self._observer = observer
        self._quotas = Quotas(settings.limits)
        self._post = post
        self._metrics = metrics
        own = welcome()
        self._limits = OpenLimits(own.max_context, own.vocabulary, own.k_max, settings.link.law_limit)

    def handle(self, stream: Stream, message: Message | StreamClosed, now: float) -> None:
        """Apply one message that arrived at ``now``; whatever does not fit is dropped and counted."""
        if isinstance(message, StreamClosed):
            self._closed(stream, message.reason)
            return
        peer = self._table.peers.get(stream)
        if peer is None:
            peer = self._table.peers[stream] = Peer(stream, stream.peer)
        if isinstance(message, Hello):
            self._hello(peer, message)
        elif peer.incarnation is None:
            self._drop("before_hello")
        elif isinstance(message, CommitBatch):
            for row in message.rows:
                self._commit(peer, row, now)
        elif isinstance(message, Open):
            self._open(peer, message, now)
        elif isinstance(message, Pull):
            self._pull(peer, message, now)
        elif isinstance(message, Attach):
            trusted = peer.refusal is None and not peer.kinds.isdisjoint(RATIO_KINDS)
            self._post.attach(stream, message, trusted=trusted)
        elif isinstance(message, Close):
            for session_id in message.sessions:
                self._close(peer, session_id)
        else:
            self._drop("unexpected")

    def _drop(self, reason: str) -> None:
        self._metrics.dropped.labels(reason).inc()

    def _closed(self, stream: Stream, reason: str) -> None:
        peer = self._table.peers.pop(stream, None)
        if peer is None:
            return
        log.info("target stream ended target=%s reason=%s sessions=%d", peer.target_id, reason, len(peer.sessions))
        self._post.forget(stream)
        count_traffic(peer, self._metrics)
        if self._leases is not None:
            self._leases.end(list(peer.sessions), "the stream of the target has ended")
        self._table.clear(peer)

    def _hello(self, peer: Peer, hello: Hello) -> None:
        """Greet; a new incarnation of a target ends the sessions of its earlier ones."""
        for other in self._table.peers.values():
            if other.target_id == hello.target_id and other.incarnation not in (None, hello.incarnation):
                self._table.clear(other)
        peer.target_id, peer.incarnation, peer.refusal = hello.target_id, hello.incarnation, None
        peer.kinds = frozenset(hello.kinds)
        welcome = self._welcome()
        peer.send(welcome)
        try:
            check_pair(hello, welcome)
        except PairMismatch as error:
            peer.refusal = error.message
            log.warning("target refused target=%s reason=%s", hello.target_id, error.message)

    def _open(self, peer: Peer, message: Open, now: float) -> None:
        epoch, void = peer.graves.get(message.session, (-1, False))
        if message.epoch < epoch or (message.epoch == epoch and void):
            self._drop("old_epoch")
            return
        session = peer.sessions.get(message.session)
        if session is not None:
            if message.epoch <= session.epoch:
                self._drop("old_epoch")
                return
            self._table.end(session, void=False)
        refusal = self._refusal(peer, message, now)
        if refusal is not None:
            code, detail, retry_s = refusal
            peer.bury(message.session, message.epoch, void=True)
            self._table.nack(peer, message.session, message.epoch, code, detail=detail, retry_s=retry_s)
            return
        sampling, limits = self._sampler.session(message), self._limits
        session = open_session(peer, message, now, context=limits.context, k_max=limits.k_max, sampling=sampling)
        peer.graves.pop(message.session, None)
        peer.sessions[message.session] = session
        self.renewed[session] = None
        peer.send(Opened(message.session, message.epoch, session.base_len))

    def _refusal(self, peer: Peer, message: Open, now: float) -> tuple[NackCode, str, float] | None:
        """Code, detail and seconds to wait."""
        if self.draining:
            return NackCode.DRAINING, "this draft is draining", 0.0
        if self._leases is not None and not self._leases.use(message.session):
            return NackCode.BUSY, "no lease is held for this session", 0.0
        over = self._quotas.opening(peer.target_id, now)
        if over is None and peer.refusal is not None:
            return NackCode.MISMATCH, peer.refusal, 0.0
        if over is None and (refusal := check_open(message, self._limits, peer.kinds)) is not None:
            return *refusal, 0.0
        over = over or self._over_tokens(peer, len(message.tokens))
        if over is not None:
            self._metrics.limited.labels(over.limit).inc()
            return over.code, over.detail, over.retry_s
        if not self._table.admit(peer, now):
            return NackCode.BUSY, "the session credit of this target is used up", 0.0
        return None

    def _over_tokens(self, peer: Peer, length: int, session: Session | None = None) -> OverQuota | None:
        return self._quotas.holding((s.base_len for s in peer.sessions.values() if s is not session), length)

    def _commit(self, peer: Peer, row: CommitRow, now: float) -> None:
        session = peer.sessions.get(row.session)
        if session is None or row.epoch > session.epoch:
            self._unknown(peer, row)
            return
        if row.epoch < session.epoch:
            self._drop("old_epoch")
            return
        had, due_s = session.base_len, session.transcript.round.due_s
        applied = session.transcript.commit(row, now, self._limits.k_max, self._limits.vocabulary)
        if applied.outcome is not None:
            self._observer.observe(session, applied.outcome)
            peer.outcome_came(due_s, now)
        if applied.dropped is not None:
            self._drop(applied.dropped)
        elif applied.nack is NackCode.GAP:
            self._table.nack(peer, session.id, session.epoch, NackCode.GAP, have_len=had)
        elif applied.nack is not None:
            self._table.refuse(session, applied.nack)
        elif applied.finished:
            self._table.end(session)
        elif session.base_len >= self._limits.context:
            self._table.refuse(session, NackCode.TOO_LONG, f"the draft's context of {self._limits.context} is full")
        elif (over := self._over_tokens(peer, session.base_len, session)) is not None:
            self._metrics.limited.labels(over.limit).inc()
            self._table.refuse(session, over.code, over.detail)
        elif applied.renewed:
            session.renewed_s = now
            self.renewed[session] = None
            if row.proposal_kind in RATIO_KINDS:
                self._send_law(session, row)

    def _send_law(self, session: Session, row: CommitRow) -> None:
        """The target verifies what we drafted: the law follows at once, while its forward runs."""
        law = session.shelf.law(row, self._sampler.vocabulary, self._sampler.output_ids)
        result = "missing"
        if law is not None:
            result = "sent" if self._post.send(session.peer.stream, law) else "too_large"
        self._metrics.laws.labels(result).inc()

    def _unknown(self, peer: Peer, row: CommitRow) -> None:
        """A row without a session: silent if that session is known to have ended, UNKNOWN once otherwise."""
        epoch, _ = peer.graves.get(row.session, (-1, False))
        if row.epoch <= epoch:
            self._drop("ended")
            return
        if row.finish:
            peer.bury(row.session, row.epoch, void=True)
            self._drop("ended")
            return
        peer.bury(row.session, row.epoch, void=False)
        self._table.nack(peer, row.session, row.epoch, NackCode.UNKNOWN)

    def _close(self, peer: Peer, session_id: int) -> None:
        session = peer.sessions.get(session_id)
        if session is not None:
            self._table.end(session)
            return
        epoch, _ = peer.graves.get(session_id, (1, False))  # an Open that was overtaken by its Close is void
        peer.bury(session_id, epoch, void=True)

    def _pull(self, peer: Peer, pull: Pull, now: float) -> None:
        """An overdue block is wanted: what exists goes out at the next step boundary."""
        session = peer.sessions.get(pull.session)
        if session is None or pull.epoch != session.epoch or pull.base_len != session.base_len:
            self._drop("old_pull")
            return
        build = session.build
        if isinstance(build, TreeBuild):
            build.due_s = min(build.due_s, now)
            self.pulled[session] = None
        elif isinstance(build, ChainBuild):
            build.deadline_s = min(build.deadline_s, now + pull.deadline_us * 1e-6)
        else:
            self._drop("old_pull")
