"""Several drafts for one sequence: partner sessions guess a share of the kept lengths each (``speculation.shards``).

The first session of a choice is the one that everything else knows. It proposes and is waited for; its partners hear
the same commits and push their branches into the same cache. Only partners that are attached are given a share: when
one is lost, the others guess its lengths from the next round on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ssd_cluster.link.messages import CommitRow, Next
from ssd_cluster.target.session import Ceilings, Session, SessionState
from ssd_cluster.types import shard_of


class Sessions(Protocol):
    """What is used of the draft pool."""

    def may_open(self, session: Session) -> bool: ...

    def open(self, session: Session) -> bool: ...

    def ceilings(self, session: Session, n_left: int, due_us: int) -> Ceilings: ...

    def observe(self, session: Session, late: bool) -> None: ...

    def forget(self, session: Session) -> None: ...


class Shards:
    """Partner sessions of one target.

    Args:
        count: drafts per sequence; 1: there are no partners.
        session_id: a fresh id.
    """

    def __init__(self, count: int, session_id: Callable[[], int]) -> None:
        self._count = count
        self._session_id = session_id

    def join(self, first: Session) -> Session:
        """Give a choice's session its partners; none of them is open yet."""
        group = [first, *(Session(self._session_id(), first.terms) for _ in range(self._count - 1))]
        for session in group:
            session.group = group
        return first

    def follow(self, pool: Sessions, rows: Iterable[tuple[Session, CommitRow]]) -> Iterator[tuple[Session, CommitRow]]:
        """The rows to send: those given, and what the partners of their sessions must hear."""
        for session, row in rows:
            yield session, row
            for partner in session.partners:
                told = self._tell(pool, session, partner, row)
                if told is not None:
                    yield partner, told
                if row.finish:
                    pool.forget(partner)

    def _tell(self, pool: Sessions, first: Session, partner: Session, row: CommitRow) -> CommitRow | None:
        """A partner's row for the same round; a detached one is opened instead, if there is room on another draft.

        A round that waits for a chain is the first session's alone: its partners hear of it with the next proposal.
        """
        self._judge(pool, partner)
        partner.limits = first.limits
        if row.finish:
            return (
                partner.commit(_news(partner), first.inflight, Ceilings(0, 0, 0), finish=True)
                if partner.replica
                else None
            )
        if row.next is Next.WAIT:
            return None
        n_left = first.terms.max_len - len(first.terms.tokens)
        if partner.replica is None:
            wanted = row.rows > 0 and n_left > 2 and first.state is SessionState.ATTACHED
            if not wanted or not pool.may_open(partner) or not pool.open(partner):
                return None
        partner.cache = first.cache
        ceilings = pool.ceilings(partner, n_left, row.due_us)
        shard, shards = partner.share
        if shards > 1 and not any(
            shard_of(k, len(row.proposal), shards) == shard for k in range(len(row.proposal) + 1)
        ):
            ceilings = Ceilings(ceilings.k, 0, ceilings.due_us)
        return partner.commit(_news(partner), first.inflight, ceilings)

    @staticmethod
    def _judge(pool: Sessions, partner: Session) -> None:
        """Whether the block that was asked for in the round that is over has come."""
        if partner.replica is not None and partner.expecting:
            pool.observe(partner, late=partner.answered != partner.inflight.fingerprint)


def _news(partner: Session) -> list[int]:
    """Committed tokens that a partner has not been told."""
    return partner.terms.tokens[partner.told :]
