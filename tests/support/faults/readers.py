"""Clients that read streams while something breaks."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator


class Reader(threading.Thread):
    """Reads the same stream again and again until it is told to stop, so that one is always open; ends with a failure.

    Args:
        ask: asks once; gives the pieces of the answer.

    Attributes:
        answers: what every answer has said so far, the unfinished one last.
        times: when each piece came, by ``time.monotonic``.
        failure: what ended it.
    """

    def __init__(self, ask: Callable[[], Iterator[str]]) -> None:
        super().__init__(daemon=True)
        self.answers: list[str] = []
        self.times: list[float] = []
        self.failure: Exception | None = None
        self._ask = ask
        self._stop_asked = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self.answers.append("")
                for piece in self._ask():
                    self.answers[-1] += piece
                    self.times.append(time.monotonic())
        except Exception as error:
            self.failure = error

    def finish(self, deadline_s: float) -> None:
        """Let the running answer come to its end."""
        self._stop_asked.set()
        self.join(deadline_s)
        assert not self.is_alive(), f"the answer has not come to its end within {deadline_s:.0f} s"

    def longest_pause_s(self, start: float, end: float) -> float:
        """Longest time without a piece between two moments; answers that follow each other count as one stream."""
        inside = [start, *(at for at in self.times if start < at < end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(inside))
