"""How long drafts take to answer, session by session; feeds the controller's model of the draft."""

from __future__ import annotations

from ssd_cluster.link.messages import Block, CommitRow, Next
from ssd_cluster.speculation.drafting import DraftTimes
from ssd_cluster.target.replica import DraftReplica
from ssd_cluster.target.session import Session, SessionState


class BlockTimes:
    """Measures from what was asked to what came first.

    Attributes:
        into: told of what was measured; None: nobody wants to know.
    """

    def __init__(self) -> None:
        self.into: DraftTimes | None = None

    @staticmethod
    def asked(session: Session, now: float, row: CommitRow | None = None) -> None:
        """An Open, or a commit, is sent."""
        tree = row is None or (row.rows > 0 and row.next is not Next.WAIT)
        session.asked_at = now if tree else None

    def opened(self, session: Session, replica: DraftReplica) -> None:
        """Opened has come; the first block also waits for the prompt, so that its time tells nothing."""
        asked_at, session.asked_at = session.asked_at, None
        if asked_at is None:
            return
        replica.trips.append(max(0.0, replica.heard_at - asked_at))
        if self.into is not None:
            self.into.observe_trip(replica.heard_at - asked_at)

    def came(self, session: Session, replica: DraftReplica, block: Block) -> None:
        """A block has come; the first of its round counts."""
        asked_at, session.asked_at = session.asked_at, None
        if self.into is None or asked_at is None or session.state is SessionState.OPENING:
            return
        if block.branches and block.fingerprint == session.inflight.fingerprint:
            self.into.observe_block(
                replica.heard_at - asked_at,
                proposed=len(session.inflight.tokens),
                rows=len(block.branches),
                depth=max(len(branch.tokens) for branch in block.branches),
                sessions=max(1, len(replica.sessions)),
            )
