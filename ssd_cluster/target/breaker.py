"""A circuit breaker per draft replica: a replica that answers too late too often is left alone for a while."""

from __future__ import annotations

import random
from collections import deque
from enum import StrEnum

from ssd_cluster.config import BreakerSettings

_JITTER = 0.5


class BreakerState(StrEnum):
    """``HALF_OPEN``: one session may probe the replica; its first outcome decides."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts late rounds of one replica over a sliding window. Times are seconds of any clock.

    Args:
        settings: window, share of late rounds that opens it, and the pause before a probe.
        rng: source of the jitter (0 to 50 % on top of the pause).
    """

    def __init__(self, settings: BreakerSettings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._window: deque[bool] = deque(maxlen=settings.window)
        self._probe_at = 0.0
        self.state = BreakerState.CLOSED

    def record(self, late: bool, now: float) -> bool:
        """Count one session round; True if the breaker has just opened."""
        if self.state is BreakerState.OPEN:
            return False
        if self.state is BreakerState.HALF_OPEN:
            if late:
                self.trip(now)
                return True
            self.reset()
            return False
        self._window.append(late)
        full = len(self._window) == self._settings.window
        if full and sum(self._window) > self._settings.late_share * self._settings.window:
            self.trip(now)
            return True
        return False

    def trip(self, now: float) -> None:
        """Open at once, as after a stream error."""
        self.state = BreakerState.OPEN
        self._window.clear()
        self._schedule(now)

    def reset(self) -> None:
        """Close: the replica is in time again."""
        self.state = BreakerState.CLOSED
        self._window.clear()

    def admit(self, now: float) -> bool:
        """Ask to open a session now; turns ``OPEN`` into ``HALF_OPEN`` when the pause is over.

        In ``HALF_OPEN`` one session is let through; if it tells nothing within another pause, the next one is.
        """
        if self.state is BreakerState.CLOSED:
            return True
        if now < self._probe_at:
            return False
        self.state = BreakerState.HALF_OPEN
        self._schedule(now)
        return True

    def _schedule(self, now: float) -> None:
        self._probe_at = now + self._settings.retry_s * (1 + _JITTER * self._rng.random())
