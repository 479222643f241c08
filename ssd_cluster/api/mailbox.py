"""From the engine's thread to one request's coroutine: a bounded queue that never makes the engine wait."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque

from ssd_cluster.target.request import Delta, Event


class Mailbox:
    """Events of one request. ``put`` is the engine's sink, ``get`` belongs to the request's event loop.

    A client that reads too slowly does not fill memory: from ``limit`` pending events on, a delta is joined to the
    newest pending one of the same choice, so that nothing is lost and at most one more event per choice is kept.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int = 64) -> None:
        self._loop = loop
        self._limit = limit
        self._events: deque[Event] = deque()
        self._lock = threading.Lock()
        self._ready = asyncio.Event()
        self._signalled = False

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Any thread; returns at once. Events for a loop that is closed are dropped."""
        with self._lock:
            self._store(event)
            if self._signalled:
                return
            self._signalled = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ready.set)

    def _store(self, event: Event) -> None:
        if len(self._events) >= self._limit and isinstance(event, Delta):
            for i in range(len(self._events) - 1, -1, -1):
                pending = self._events[i]
                if isinstance(pending, Delta) and pending.choice == event.choice:
                    self._events[i] = joined(pending, event)
                    return
        self._events.append(event)

    async def get(self, timeout_s: float) -> Event | None:
        """The oldest event; None if nothing comes within ``timeout_s``."""
        deadline = self._loop.time() + timeout_s
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                self._ready.clear()
                self._signalled = False
            try:
                async with asyncio.timeout_at(deadline):
                    await self._ready.wait()
            except TimeoutError:
                if not self._events:
                    return None


def joined(first: Delta, second: Delta) -> Delta:
    """Two consecutive deltas of one choice as one."""
    return Delta(
        request_id=second.request_id,
        choice=second.choice,
        token_ids=first.token_ids + second.token_ids,
        text=first.text + second.text,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
    )
