"""Who is connected, which sessions they hold, what they may ask for, and who gives way when pages run out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.builds import BranchBuild, Build, TreeBuild
from ssd_cluster.draft.pages import SessionPages
from ssd_cluster.draft.session import Session
from ssd_cluster.draft.shares import fair_shares
from ssd_cluster.errors import LinkClosed, OutOfBlocks
from ssd_cluster.link.limits import MAX_U32
from ssd_cluster.link.messages import Load, Message, Nack, NackCode
from ssd_cluster.link.stream import Stream
from ssd_cluster.metrics import DraftMetrics
from ssd_cluster.model.kv import BlockPool, TailPool
from ssd_cluster.types import ProposalKind

_GRAVES = 4096
_RETRY_AFTER_S = 1.0
_EARLY_RATE = 0.1


@dataclass(slots=True, eq=False)
class Peer:
    """One stream, that is one target replica, and its sessions.

    Attributes:
        target_id: its name from Hello; the stream's address before that.
        incarnation: None before Hello.
        kinds: what it verifies, from Hello.
        refusal: why the pair does not fit; every Open is then refused with it.
        sessions: by session id.
        graves: ended sessions: (newest epoch that is known to have ended, whether an Open of that epoch is void too).
        load: the newest Load sent.
        early_s: mean time by which outcomes come before their blocks were due (0 for those that come later).
        counted: bytes sent, bytes received and invalid frames of the stream that metrics have already.
    """

    stream: Stream
    target_id: str
    incarnation: int | None = None
    kinds: frozenset[ProposalKind] = frozenset()
    refusal: str | None = None
    sessions: dict[int, Session] = field(default_factory=dict)
    graves: dict[int, tuple[int, bool]] = field(default_factory=dict)
    load: Load | None = None
    early_s: float = 0.0
    counted: tuple[int, int, int] = (0, 0, 0)

    def send(self, message: Message) -> None:
        """Send, or do nothing on a stream that has just ended: its end is in the inbox already or comes soon."""
        try:
            self.stream.send(message)
        except LinkClosed:
            return

    def outcome_came(self, due_s: float, now: float) -> None:
        """An outcome is here whose block had to leave by ``due_s``: if that is still to come, blocks leave too late."""
        self.early_s += _EARLY_RATE * (max(0.0, due_s - now) - self.early_s)

    def bury(self, session: int, epoch: int, *, void: bool) -> None:
        """Remember an ended session, so that what is still under way for it is dropped without an answer."""
        self.graves.pop(session, None)
        self.graves[session] = (epoch, void)
        if len(self.graves) > _GRAVES:
            del self.graves[next(iter(self.graves))]


class SessionTable:
    """All peers and sessions of one draft.

    Args:
        settings: credits and limits.
        pool: KV pages that the sessions share.
        tails: slots of tree branches.
        metrics: counters.
        weight: relative share of a target.

    Attributes:
        peers: by stream.
        active: sessions with something to run.
        short_span: most tokens of a span that is not split over several forwards.
    """

    def __init__(
        self,
        settings: DraftSettings,
        pool: BlockPool,
        tails: TailPool | None,
        metrics: DraftMetrics,
        weight: Callable[[str], float],
    ) -> None:
        self.short_span = 2 * (settings.k_max + 1)
        self.peers: dict[Stream, Peer] = {}
        self.active: dict[Session, None] = {}
        self._settings = settings
        self._pool = pool
        self._tails = tails
        self._metrics = metrics
        self.weight = weight

    def __len__(self) -> int:
        """Open sessions."""
        return sum(len(peer.sessions) for peer in list(self.peers.values()))

    def sessions(self) -> Iterator[Session]:
        for peer in self.peers.values():
            yield from peer.sessions.values()

    @property
    def kv_usage(self) -> float:
        """Used share of the KV pool, 0 to 1."""
        return 1.0 - self._pool.n_free / self._pool.n_total

    # --- credits

    def share(self, peer: Peer, credit: int) -> int:
        """The part of a credit that one greeted peer may use, by weight; at least 1."""
        total = sum(self.weight(p.target_id) for p in self.peers.values() if p.incarnation is not None)
        return max(1, int(credit * self.weight(peer.target_id) / total)) if total else credit

    def row_credit(self, peer: Peer) -> int:
        """Most rows per round that one target may ask for."""
        return min(self.share(peer, self._settings.row_credit), self._settings.limits.rows or MAX_U32)

    def session_credit(self, peer: Peer) -> int:
        """Most sessions that one target may hold."""
        return min(self.share(peer, self._settings.session_credit), self._settings.limits.sessions or MAX_U32)

    def row_allowance(self, session: Session, build: TreeBuild) -> int:
        """Branches that a tree may have now: its target's ceiling, cut in proportion where credits are exceeded.

        All trees at work together get at most one full step's rows, those of one target at most its row credit. What
        one target wants beyond its part of a step is cut from its own trees: each of them loses its rows of lowest
        gain, instead of one tree losing everything.
        """
        wanted = {session.peer: 0}
        for other in self.active:
            if isinstance(other.build, TreeBuild):
                wanted[other.peer] = wanted.get(other.peer, 0) + other.build.rows
        mine = max(build.rows, wanted[session.peer])
        capped = {peer: min(rows, self.row_credit(peer)) for peer, rows in wanted.items()}
        if mine > self.row_credit(session.peer):
            self._metrics.limited.labels("rows").inc()
        weights = {peer: self.weight(peer.target_id) for peer in capped}
        share = fair_shares(capped, weights, self._settings.max_step_rows)[session.peer]
        return build.rows if share >= mine else max(1, build.rows * share // mine)

    def admit(self, peer: Peer, now: float) -> bool:
        """Whether the peer may hold one more session; sessions that its target has long forgotten make room.

        A target below its share is always admitted: if others hold more than theirs, one of those sessions is refused.
        """
        if len(peer.sessions) >= self.session_credit(peer):
            forgotten = [s for s in peer.sessions.values() if now - s.renewed_s > self._settings.link.session_ttl_s]
            if not forgotten:
                self._metrics.limited.labels("sessions").inc()
                return False
            self.end(min(forgotten, key=lambda s: s.renewed_s))
        if len(self) >= self._settings.session_credit:
            greedy = [p for p in self.peers.values() if len(p.sessions) > self.share(p, self._settings.session_credit)]
            if not greedy:
                return False
            victim = max(greedy, key=lambda p: len(p.sessions) / self.weight(p.target_id))
            self.refuse(self.least_wanted(victim), NackCode.BUSY, "another target needs its share of the sessions")
        return True

    @staticmethod
    def least_wanted(peer: Peer) -> Session:
        """The session to shed first: lowest priority, then longest without a commit."""
        return min(peer.sessions.values(), key=lambda s: (s.priority, s.renewed_s))

    # --- ends

    def end(self, session: Session, *, void: bool = True) -> None:
        """Free everything of a session; ``void``: also later copies of its Open are to be ignored."""
        session.ended = True
        self.drop_build(session)
        self.active.pop(session, None)
        if session.pages is not None:
            session.pages.release()
            session.pages = None
        session.peer.sessions.pop(session.id, None)
        session.peer.bury(session.id, session.epoch, void=void)

    def refuse(self, session: Session, code: NackCode, detail: str = "") -> None:
        """End a session and tell its target why."""
        have = session.base_len
        self.end(session)
        self.nack(session.peer, session.id, session.epoch, code, have_len=have, detail=detail)

    def nack(
        self,
        peer: Peer,
        session: int,
        epoch: int,
        code: NackCode,
        *,
        have_len: int = 0,
        detail: str = "",
        retry_s: float = 0.0,
    ) -> None:
        """Send one refusal and count it; ``retry_s``: when a BUSY target may come again at the earliest."""
        self._metrics.nacks.labels(code.value).inc()
        retry_ms = math.ceil(1000 * max(_RETRY_AFTER_S, retry_s)) if code is NackCode.BUSY else 0
        peer.send(Nack(session, epoch, code, have_len=have_len, retry_after_ms=min(retry_ms, MAX_U32), detail=detail))

    def clear(self, peer: Peer) -> None:
        """Free all sessions of a peer."""
        for session in list(peer.sessions.values()):
            self.end(session)

    # --- resources of one session

    def set_build(self, session: Session, build: Build | None) -> None:
        """Replace a session's work; tail slots of the old work are freed.

        Without work a long backlog (a new session's prompt) is still run: what comes next then starts at once.
        """
        self.drop_build(session)
        session.build = build
        runnable = not build.done if build is not None else session.backlog > self.short_span
        if runnable:
            self.active[session] = None
        else:
            self.active.pop(session, None)

    def rest(self, session: Session) -> None:
        """Nothing more is to run for a session until its next commit."""
        self.active.pop(session, None)

    def drop_build(self, session: Session) -> None:
        """Drop a session's work at a step boundary."""
        build = session.build
        session.build = None
        if isinstance(build, TreeBuild):
            self.free_tails(build.live)

    def take_tails(self, branches: list[BranchBuild]) -> int:
        """Give tail slots to branches, first ones first; returns how many got one."""
        if self._tails is None:
            return 0
        n = min(len(branches), self._tails.n_free)
        for branch, slot in zip(branches, self._tails.allocate(n), strict=False):
            branch.tail = slot
        return n

    def free_tails(self, branches: list[BranchBuild]) -> None:
        """Give the branches' tail slots back."""
        slots = [branch.tail for branch in branches if branch.tail is not None]
        for branch in branches:
            branch.tail = None
        if slots and self._tails is not None:
            self._tails.free(slots)

    def ensure(self, session: Session, pages: SessionPages, positions: int, now: float) -> bool:
        """Pages for so many positions; idle sessions give way. False: there is no room, the session was refused."""
        while True:
            try:
                pages.ensure(positions)
                return True
            except OutOfBlocks:
                if not self._evict_idle(session, now):
                    fits = positions <= self._pool.n_total * self._pool.block_size
                    code = NackCode.BUSY if fits else NackCode.TOO_LONG
                    self.refuse(session, code, f"no KV pages for {positions} tokens")
                    return False

    def cool(self, now: float) -> None:
        """Drop the cached noise of idle sessions; it is drawn again when they go on."""
        for session in self.sessions():
            if now - session.renewed_s >= self._settings.idle_s:
                session.sampling.discard_below()

    def _evict_idle(self, wanting: Session, now: float) -> bool:
        """Take the pages of the session that has been idle longest; its tokens stay."""
        idle = [
            s
            for s in self.sessions()
            if s is not wanting
            and s.pages is not None
            and s not in self.active
            and now - s.renewed_s >= self._settings.idle_s
        ]
        if not idle:
            return False
        victim = min(idle, key=lambda s: s.renewed_s)
        if victim.pages is not None:
            victim.pages.release()
            victim.pages = None
        self._metrics.evictions.inc()
        self.nack(victim.peer, victim.id, victim.epoch, NackCode.EVICTED, have_len=victim.base_len)
        return True
