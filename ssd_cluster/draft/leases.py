"""The leases that a draft has granted. A session may only be opened under one, where leases are asked for at all.

Granting and giving back happen on the placing side's thread, everything else on the engine's: the book is thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class HeldLease:
    """One lease of a session.

    Attributes:
        session: its id, the same as on the link.
        granted_s: when, by the book's clock.
        revoked: tells the holder that the session should go elsewhere; the lease goes on.
        ended: tells the holder that the lease is over.
        opened: whether the session has been opened under it.
    """

    session: int
    granted_s: float
    revoked: Callable[[str], None]
    ended: Callable[[str], None]
    opened: bool = False


class LeaseBook:
    """Leases by session.

    Args:
        unused_s: a lease under which no session has been opened for this long is ended.
        clock: seconds, monotonic.
    """

    def __init__(self, unused_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._unused_s = unused_s
        self._clock = clock
        self._lock = threading.Lock()
        self._leases: dict[int, list[HeldLease]] = {}
        self._draining: str | None = None

    def __len__(self) -> int:
        """Leases that are held."""
        with self._lock:
            return sum(map(len, self._leases.values()))

    def grant(self, session: int, revoked: Callable[[str], None], ended: Callable[[str], None]) -> HeldLease:
        """A lease for a session, revoked at once if this draft sends sessions elsewhere.

        The callbacks may come from any thread and must return at once.
        """
        lease = HeldLease(session, self._clock(), revoked, ended)
        with self._lock:
            self._leases.setdefault(session, []).append(lease)
            draining = self._draining
        if draining is not None:
            revoked(draining)
        return lease

    def give_back(self, lease: HeldLease) -> None:
        """The holder needs it no more; safe to call twice."""
        with self._lock:
            held = self._leases.get(lease.session, [])
            if lease in held:
                held.remove(lease)
            if not held:
                self._leases.pop(lease.session, None)

    def use(self, session: int) -> bool:
        """Whether a session may be opened now; its leases count as used from then on."""
        with self._lock:
            held = self._leases.get(session, [])
            for lease in held:
                lease.opened = True
            return bool(held)

    def end(self, sessions: Iterable[int], reason: str) -> None:
        """The target of these sessions has gone: their leases are over."""
        with self._lock:
            over = [lease for session in sessions for lease in self._leases.pop(session, [])]
        for lease in over:
            lease.ended(reason)

    def expire(self) -> None:
        """End the leases that nobody uses."""
        since = self._clock() - self._unused_s
        with self._lock:
            unused = [one for held in self._leases.values() for one in held if not one.opened and one.granted_s < since]
        for lease in unused:
            self.give_back(lease)
            lease.ended("no session was opened under it")

    def revoke(self, reason: str) -> None:
        """Ask every holder, and all that come later, to go elsewhere."""
        with self._lock:
            self._draining = reason
            held = [lease for leases in self._leases.values() for lease in leases]
        for lease in held:
            lease.revoked(reason)
