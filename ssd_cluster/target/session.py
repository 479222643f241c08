"""The target's handle on one draft session: state machine, epoch, and the rows of its commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ssd_cluster.link.messages import CommitRow, Next, Open
from ssd_cluster.speculation.cache import SpeculationCache
from ssd_cluster.speculation.controller import Limits
from ssd_cluster.types import Proposal, ProposalKind

if TYPE_CHECKING:
    from ssd_cluster.target.replica import DraftReplica
    from ssd_cluster.verify import DraftLaw

SUSPECT_AFTER = 2
REOPEN_LIMIT = 3
REOPEN_WINDOW_S = 10.0


class SessionState(StrEnum):
    """``DETACHED``: local fallback only. ``OPENING``: decoding goes on meanwhile. ``SUSPECT``: late twice in a row."""

    DETACHED = "detached"
    OPENING = "opening"
    ATTACHED = "attached"
    SUSPECT = "suspect"


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """What a draft must know about a choice; ``tokens`` is the choice's own growing list of committed tokens."""

    tokens: list[int]
    k: int
    temperature: float
    seed: int
    top_k: int
    top_p: float
    stop_ids: tuple[int, ...]
    max_len: int
    priority: int
    kind: ProposalKind
    top_m: int = 0
    saguaro_c: float = 1.0
    saguaro_f: int = 0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a commit allows the draft for the block that follows, and when that must leave, counted from its receipt."""

    k: int
    rows: int
    due_us: int


class Session:
    """One choice's session. Fields are written by the pool on the engine thread only.

    Attributes:
        id: random u64, fixed for the choice's life.
        epoch: grows with every Open.
        retry_at: do not open before this time.
        refused: a draft said that this request cannot be served; never opened again.
        late_rounds: consecutive rounds whose block did not come in time.
        inflight: proposal that is verified now or next.
        expecting: a block was asked for in this round.
        limits: what the controller allows; None without one.
        asked_rows: branches that the newest message allowed.
        asked_at: when a block was asked for; None once it has come.
        law: the law of ``inflight``, once it has come.
        law_refused: a law for ``inflight`` has come and could not be used.
        group: the sessions that share this choice's outcomes, the choice's own first.
        told: committed tokens that the draft has been told.
        answered: fingerprint of the proposal that the newest block was for.
    """

    def __init__(self, session_id: int, terms: SessionTerms) -> None:
        self.id = session_id
        self.terms = terms
        self.state = SessionState.DETACHED
        self.replica: DraftReplica | None = None
        self.cache: SpeculationCache | None = None
        self.epoch = 0
        self.counter = 0
        self.late_rounds = 0
        self.retry_at = 0.0
        self.refused = False
        self.inflight = Proposal(len(terms.tokens))
        self.expecting = False
        self.limits: Limits | None = None
        self.asked_rows = 0
        self.asked_at: float | None = None
        self.law: DraftLaw | None = None
        self.law_refused = False
        self.group: Sequence[Session] = (self,)
        self.told = 0
        self.answered: int | None = None
        self._reopened: deque[float] = deque(maxlen=REOPEN_LIMIT)

    @property
    def may_wait(self) -> bool:
        """Only a session that answers in time is ever waited for."""
        return self.state is SessionState.ATTACHED

    @property
    def may_attach(self) -> bool:
        """Whether the controller lets it be open."""
        return self.limits is None or self.limits.attached

    @property
    def partners(self) -> Sequence[Session]:
        """The other sessions of the group, seen from its first."""
        return self.group[1:] if self.group[0] is self else ()

    @property
    def share(self) -> tuple[int, int]:
        """(shard, shards) of this session: the first and the partners that answer share, others guess everything."""
        sharing = [self.group[0], *(one for one in self.group[1:] if one.state is SessionState.ATTACHED)]
        return (sharing.index(self), len(sharing)) if self in sharing else (0, 1)

    @property
    def elsewhere(self) -> set[str]:
        """Names of the replicas that hold the rest of the group."""
        return {one.replica.name for one in self.group if one is not self and one.replica is not None}

    def open(self, replica: DraftReplica, cache: SpeculationCache, rows: int) -> Open:
        """Start a new epoch on ``replica``; returns the message that opens it with every committed token."""
        terms = self.terms
        rows = self._allowed(rows)
        self.asked_rows = rows
        self.epoch += 1
        self.counter = 0
        self.late_rounds = 0
        self.replica = replica
        self.cache = cache
        self._verifies(Proposal(len(terms.tokens)))
        self.expecting = rows > 0
        self.state = SessionState.OPENING
        self.told = len(terms.tokens)
        self.answered = None
        return Open(
            session=self.id,
            epoch=self.epoch,
            tokens=tuple(terms.tokens),
            kind=terms.kind,
            temperature=terms.temperature,
            seed=terms.seed,
            top_k=terms.top_k,
            top_p=terms.top_p,
            stop_ids=terms.stop_ids,
            max_len=terms.max_len,
            k=min(terms.k, replica.k_max),
            rows=rows,
            priority=terms.priority,
            top_m=terms.top_m,
            saguaro_c=terms.saguaro_c,
            saguaro_f=terms.saguaro_f,
        )

    def _allowed(self, rows: int) -> int:
        return rows if self.limits is None else min(rows, self.limits.rows)

    def _verifies(self, proposal: Proposal) -> None:
        """This is verified next; a law belongs to one proposal only."""
        if proposal != self.inflight:
            self.law = None
            self.law_refused = False
        self.inflight = proposal

    def detach(self, retry_at: float = 0.0) -> None:
        """Leave the replica; local fallback until the session is opened again."""
        self.state = SessionState.DETACHED
        self.replica = None
        self.cache = None
        self.retry_at = max(self.retry_at, retry_at)

    def may_reopen(self, now: float) -> bool:
        """Count a re-opening after a refusal; False once there were three in ten seconds."""
        full = len(self._reopened) == REOPEN_LIMIT
        if full and now - self._reopened[0] < REOPEN_WINDOW_S:
            return False
        self._reopened.append(now)
        return True

    def commit(
        self,
        tokens: Sequence[int],
        proposal: Proposal | None,
        ceilings: Ceilings,
        *,
        deadline_us: int = 0,
        finish: bool = False,
    ) -> CommitRow:
        """The row that tells the draft of ``tokens``, already part of the committed text, and of what comes next.

        Args:
            tokens: the newest committed tokens; empty for another ``next`` at the same length.
            proposal: what is verified next; None: a just-in-time chain is waited for until ``deadline_us``.
            ceilings: for the block that follows.
            finish: the choice has ended.
        """
        total = len(self.terms.tokens)
        rows = self._allowed(ceilings.rows)
        k = ceilings.k if self.limits is None else min(ceilings.k, max(1, self.limits.k))
        self.asked_rows = rows
        self.counter += 1
        self._verifies(proposal if proposal is not None else Proposal(total))
        self.expecting = proposal is None or rows > 0
        if self.cache is not None:
            self.cache.propose(self.inflight)
        following = Next.WAIT
        if proposal is not None:
            following = Next.TOKENS if proposal.tokens else Next.NONE
        self.told = total
        shard, shards = self.share
        return CommitRow(
            session=self.id,
            epoch=self.epoch,
            from_len=total - len(tokens),
            tokens=tuple(tokens),
            next=following,
            k=k,
            rows=rows,
            counter=self.counter,
            due_us=ceilings.due_us,
            deadline_us=deadline_us,
            proposal=self.inflight.tokens,
            proposal_kind=self.inflight.kind,
            origin=self.inflight.origin,
            finish=finish,
            shard=shard,
            shards=shards,
        )

    def observe(self, late: bool) -> None:
        """Count a round of this session: in time makes it ``ATTACHED``, late twice in a row ``SUSPECT``."""
        if self.state is SessionState.DETACHED:
            return
        if not late:
            self.late_rounds = 0
            self.state = SessionState.ATTACHED
            return
        self.late_rounds += 1
        if self.state is SessionState.ATTACHED and self.late_rounds >= SUSPECT_AFTER:
            self.state = SessionState.SUSPECT
