"""Ctrl-C and SIGTERM as one exception, except where an interruption would leave something half-made."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Somebody asked us to stop."""


class StopSignals:
    """Handles the signals while it is entered; main thread only.

    Attributes:
        requested: set once a stop has been asked for.
        count: how often; a second one means "at once".
    """

    def __init__(self) -> None:
        self.requested = threading.Event()
        self.count = 0
        self._deferred = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        for number in _SIGNALS:
            self._before[number] = signal.getsignal(number)
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def install(self) -> None:
        """Take the signals (again: Ray sets its own SIGTERM handler)."""
        for number in _SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.requested.set()
        if not self._deferred:
            raise Interrupted

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, a signal is only remembered; at the end it is raised."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if not self._deferred and self.requested.is_set():
            raise Interrupted

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Inside, a signal is only counted: for cleaning up after the first one."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
