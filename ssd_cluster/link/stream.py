"""The seam between a target and a draft: a message stream and the inbox that many streams feed.

Engines are plain threads that must not wait for an event loop, so both ends are thread-safe and synchronous: ``send``
never blocks, and whatever arrives on any stream is put into the owner's ``Inbox``.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from ssd_cluster.link.messages import Message, StreamClosed


class Stream(ABC):
    """One bidirectional, ordered stream of messages between one target replica and one draft replica.

    Whoever closes a stream on purpose hears nothing more of it; in every other case (the peer closed or died, silence,
    a peer that does not read, repeated garbage) its inbox receives exactly one ``StreamClosed``, as the last item of
    that stream. Pings are the stream's own business: the draft's end answers them and engines never see one.

    Attributes:
        bytes_sent, bytes_received: size of the frames so far; 0 where messages are handed over without frames.
        frames_dropped: received frames that did not pass validation.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    frames_dropped: int = 0

    @property
    def unsent(self) -> int:
        """Frames that were sent and have not left yet; 0 where messages are handed over at once."""
        return 0

    @property
    @abstractmethod
    def peer(self) -> str:
        """Address or name of the other side, for logs."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True once nothing more can be sent."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Queue a message and return at once.

        Raises:
            LinkClosed: the stream has ended, or ends now because the peer does not read what was sent.
            InvalidFrame: the message does not fit a frame or belongs to the other direction (a bug of the sender).
        """

    @abstractmethod
    def close(self, reason: str = "closed") -> None:
        """End the stream; the peer's inbox receives ``StreamClosed``. Safe to call twice."""


Received = tuple[Stream, Message | StreamClosed]


class Inbox:
    """Thread-safe queue of (stream, message) pairs with one consumer.

    A consumer that has other things to wait for as well (new requests, a stop) may be woken by ``wake``.

    Args:
        clock: seconds, monotonic; stamps what arrives.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._items: deque[tuple[Stream, Message | StreamClosed, float]] = deque()
        self._clock = clock
        self._signal = threading.Event()

    def put(self, stream: Stream, message: Message | StreamClosed) -> None:
        self._items.append((stream, message, self._clock()))
        self._signal.set()

    def wake(self) -> None:
        """Make a running or the next ``wait`` return."""
        self._signal.set()

    def drain(self) -> list[Received]:
        """All that has arrived, oldest first; never blocks."""
        return [(stream, message) for stream, message, _ in self.drain_timed()]

    def drain_timed(self) -> list[tuple[Stream, Message | StreamClosed, float]]:
        """The same, each with the time at which it arrived."""
        received: list[tuple[Stream, Message | StreamClosed, float]] = []
        while self._items:
            received.append(self._items.popleft())
        return received

    def wait(self, timeout_s: float) -> bool:
        """Block until something arrives, ``wake`` is called or the timeout ends; True unless it timed out."""
        woken = self._signal.is_set() if timeout_s <= 0 else self._signal.wait(timeout_s)
        if woken:  # not after a timeout: a signal set since then belongs to the next wait
            self._signal.clear()
        return woken or bool(self._items)

    def receive(self, timeout_s: float) -> Received | None:
        """The oldest item, waiting at most ``timeout_s``; None on timeout."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._items:
                return self._items.popleft()[:2]
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            self.wait(remaining)
