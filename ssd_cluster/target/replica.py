"""One draft replica as a target sees it: its stream, what it said about itself, its credits and its breaker."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum

from ssd_cluster.config import BreakerSettings
from ssd_cluster.link.messages import Load, Welcome
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.breaker import Breaker
from ssd_cluster.target.session import Session

Connector = Callable[[Inbox], Stream]
"""Opens a stream to a draft, or raises ``LinkError``; blocks at most for its own deadline."""

_JITTER = 0.5
_LONGEST_PAUSE_S = 3.3
"""With jitter 5 s at most: so long a draft that is back, after however long, waits until it is tried again. An attempt
costs one connection on a thread of its own, so that longer pauses would save nothing worth the wait."""
_TRIPS = 24


class ReplicaState(StrEnum):
    """``REFUSED``: the pair does not fit together; ``DOWN`` waits for its next attempt."""

    DOWN = "down"
    CONNECTING = "connecting"
    GREETING = "greeting"
    READY = "ready"
    REFUSED = "refused"


class DraftReplica:
    """State of one draft replica; owned by the engine thread.

    Attributes:
        name: for logs.
        sessions: the sessions of this target that are open there, by id.
        deadline: when CONNECTING or GREETING has failed, or DOWN tries again.
        heard_at: when the message that is being handled arrived.
        bytes_seen: (sent, received) counters of the stream that metrics have already.
        incarnation: what must answer there; None: any.
        leases: leases that lead there; None: it needs none.
        unleased_at: since when none does.
        lookups: cache lookups of its sessions, by result.
        trips: newest times from an Open to its Opened, seconds.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        settings: BreakerSettings,
        rng: random.Random,
        incarnation: int | None = None,
    ) -> None:
        self.name = name
        self.connector = connector
        self.incarnation = incarnation
        self.leases = None if incarnation is None else 0
        self.unleased_at = 0.0
        self.lookups: Counter[str] = Counter()
        self.trips: deque[float] = deque(maxlen=_TRIPS)
        self.state = ReplicaState.DOWN
        self.stream: Stream | None = None
        self.welcome: Welcome | None = None
        self.load: Load | None = None
        self.breaker = Breaker(settings, rng)
        self.sessions: dict[int, Session] = {}
        self.deadline = 0.0
        self.failures = 0
        self.heard_at = 0.0
        self.bytes_seen = (0, 0)
        self.logged: set[str] = set()
        self._retry_s = self._pause_s = settings.retry_s
        self._rng = rng

    @property
    def wanted(self) -> bool:
        """Whether anybody may open a session there."""
        return self.leases is None or self.leases > 0

    @property
    def k_max(self) -> int:
        """Most tokens behind one outcome; 0 before Welcome."""
        return self.welcome.k_max if self.welcome is not None else 0

    @property
    def round_trip_s(self) -> float:
        """Twice the one-way latency of the link, as far as it is known: the shortest trip; 0 before the first."""
        return min(self.trips, default=0.0)

    @property
    def draining(self) -> bool:
        return self.load is not None and self.load.draining

    @property
    def session_credit(self) -> int:
        """Most sessions this target may hold there."""
        source = self.load or self.welcome
        return source.session_credit if source is not None else 0

    @property
    def row_credit(self) -> int:
        """Most rows per round that this target may ask for, all sessions together."""
        source = self.load or self.welcome
        return source.row_credit if source is not None else 0

    def rows_each(self, wanted: int, sessions: int | None = None) -> int:
        """Rows one session may ask for when ``sessions`` (default: those open) share the credit."""
        return min(wanted, self.row_credit // max(1, len(self.sessions) if sessions is None else sessions))

    def has_room(self, needs_rows: bool) -> bool:
        """Whether one more session fits into the credits."""
        if self.state is not ReplicaState.READY or self.draining or len(self.sessions) >= self.session_credit:
            return False
        return not needs_rows or self.rows_each(1, len(self.sessions) + 1) >= 1

    def connected(self, stream: Stream) -> None:
        """A stream is open and Hello has been sent; Welcome is due."""
        self.stream = stream
        self.state = ReplicaState.GREETING
        self.bytes_seen = (0, 0)
        self.trips.clear()

    def welcomed(self, welcome: Welcome) -> None:
        """The draft has answered and fits: sessions may be opened."""
        self.welcome = welcome
        self.state = ReplicaState.READY
        self.failures = 0
        self._pause_s = self._retry_s

    def failed(self, now: float) -> None:
        """The attempt or the stream has failed: try again after a pause that doubles up to a limit, with jitter."""
        self.stream = None
        self.load = None
        self.state = ReplicaState.DOWN
        self.failures += 1
        self.deadline = now + self._pause_s * (1 + _JITTER * self._rng.random())
        self._pause_s = max(self._retry_s, min(2 * self._pause_s, _LONGEST_PAUSE_S))
