"""Virtual time: events run in order of time, those of one time in the order in which they were scheduled."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Timeline:
    """``now``: seconds since the start; ``stopped``: set to end ``run`` after the current event."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stopped = False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Run ``event`` at ``time``; what has passed already runs now."""
        heapq.heappush(self._events, (max(time, self.now), self._count, event))
        self._count += 1

    def run(self) -> None:
        """Run events until there are none or one of them has stopped the timeline."""
        while self._events and not self.stopped:
            self.now, _, event = heapq.heappop(self._events)
            event()
