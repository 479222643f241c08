"""Lessors without Ray: one that a test answers for, and one that asks a draft service in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ssd_cluster.draft.leases import HeldLease
from ssd_cluster.errors import LinkError
from ssd_cluster.serve.draft_service import DraftService
from ssd_cluster.target.leases import Ended, Grant, Granted, LeaseEvent, Revoked, Wish


@dataclass
class Asked:
    """A lease that a target has asked for."""

    session: int
    lease: int
    wish: Wish
    report: Callable[[LeaseEvent], None]


@dataclass
class ScriptedLessor:
    """Grants nothing by itself, or everything on ``always``.

    Attributes:
        always: where every lease leads at once.
        asked: leases that were asked for and not given back, by number.
        history: all that were ever asked for.
    """

    always: Grant | None = None
    asked: dict[int, Asked] = field(default_factory=dict)
    history: list[Asked] = field(default_factory=list)
    closed: bool = False

    def acquire(self, session: int, lease: int, wish: Wish, report: Callable[[LeaseEvent], None]) -> None:
        self.asked[lease] = Asked(session, lease, wish, report)
        self.history.append(self.asked[lease])
        if self.always is not None:
            report(Granted(lease, self.always))

    def release(self, lease: int) -> None:
        del self.asked[lease]  # twice would be an error

    def close(self) -> None:
        self.closed = True
        self.asked.clear()

    def grant(self, grant: Grant) -> None:
        """Grant everything that is asked for now."""
        for one in list(self.asked.values()):
            one.report(Granted(one.lease, grant))

    def end(self, reason: str = "gone") -> None:
        """End every lease."""
        for one in list(self.asked.values()):
            del self.asked[one.lease]
            one.report(Ended(one.lease, reason))

    def revoke(self) -> None:
        for one in list(self.asked.values()):
            one.report(Revoked(one.lease, "draining"))


class BookLessor:
    """Takes leases from the book of the draft service that ``find`` names."""

    def __init__(self, find: Callable[[], DraftService]) -> None:
        self._find = find
        self._held: dict[int, tuple[DraftService, HeldLease]] = {}

    def acquire(self, session: int, lease: int, wish: Wish, report: Callable[[LeaseEvent], None]) -> None:
        try:
            draft = self._find()
        except LinkError as error:
            report(Ended(lease, error.message))
            return
        held = draft._leases.grant(
            session, lambda why: report(Revoked(lease, why)), lambda why: report(Ended(lease, why))
        )
        self._held[lease] = draft, held
        at = draft.endpoint()
        report(Granted(lease, Grant(at["replica"], at["endpoint"], at["incarnation"])))

    def release(self, lease: int) -> None:
        draft, held = self._held.pop(lease, (None, None))
        if draft is not None and held is not None:
            draft._leases.give_back(held)

    def close(self) -> None:
        for lease in list(self._held):
            self.release(lease)
