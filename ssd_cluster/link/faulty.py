"""A link that misbehaves on purpose, around any backend.

``faulty_connector`` wraps the streams of a target, both directions; ``FaultyInbox`` wraps every stream of a draft.
Every decision comes from the plans' seeds and the order of the messages, and time from an injected ``Timer``, so that a
run can be repeated exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable

from ssd_cluster.errors import LinkClosed
from ssd_cluster.link.faults import FaultLine, FaultPlan, Timer
from ssd_cluster.link.messages import Message, StreamClosed
from ssd_cluster.link.stream import Inbox, Received, Stream

_NO_FAULTS = FaultPlan()


@runtime_checkable
class _Frames(Protocol):
    """A backend that can send bytes as they are."""

    def send_frame(self, frame: bytes) -> None: ...


class FaultyStream(Stream):
    """A stream that disturbs what is sent through it and, when made by a ``FaultyInbox``, what arrives on it.

    Args:
        inner: the stream that carries what is left.
        outgoing: what happens to sent messages.
        timer: needed for delay, jitter and reorder.
        inbox: inbox of the engine that uses this stream; ``kill`` and arriving messages go there.
        incoming: what happens to arriving messages.
        number: of this stream among those that share the plans.
    """

    def __init__(
        self,
        inner: Stream,
        outgoing: FaultPlan = _NO_FAULTS,
        timer: Timer | None = None,
        *,
        inbox: Inbox | None = None,
        incoming: FaultPlan = _NO_FAULTS,
        number: int = 0,
    ) -> None:
        self._inner = inner
        self._inbox = inbox
        self._dead = False
        self._lock = threading.Lock()
        raw = self._send_raw if isinstance(inner, _Frames) else None
        self._out = FaultLine(outgoing, number, timer, self._send_on, self.kill, raw)
        self._in = FaultLine(incoming, number, timer, self._put_on, self.kill)

    @property
    def inner(self) -> Stream:
        return self._inner

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def closed(self) -> bool:
        return self._dead or self._inner.closed

    @property
    def unsent(self) -> int:
        return self._inner.unsent

    @property
    def lost(self) -> int:
        """Messages of both directions that the plans or a partition swallowed."""
        return self._out.lost + self._in.lost

    def send(self, message: Message) -> None:
        if self.closed:
            raise LinkClosed(f"the stream to {self.peer} has ended")
        self._out.put(message)
        self.bytes_sent = self._inner.bytes_sent
        if self._dead:
            raise LinkClosed(f"the stream to {self.peer} has ended")

    def arrive(self, message: Message | StreamClosed) -> None:
        """What the backend received; a ``StreamClosed`` is passed on at once, and nothing after it."""
        self.bytes_received = self._inner.bytes_received
        self.frames_dropped = self._inner.frames_dropped
        if not isinstance(message, StreamClosed):
            self._in.put(message)
        elif self._die() and self._inbox is not None:
            self._inbox.put(self, message)

    def close(self, reason: str = "closed") -> None:
        self._die()
        self._inner.close(reason)

    def kill(self, reason: str = "killed") -> None:
        """End the stream as a crash of the peer would: both inboxes receive ``StreamClosed``."""
        if self._die():
            self._inner.close(reason)
            if self._inbox is not None:
                self._inbox.put(self, StreamClosed(reason))

    def partition(self) -> None:
        """Lose everything in both directions from now on, silently; the stream itself stays open."""
        self._out.whole = self._in.whole = False

    def heal(self) -> None:
        """End the partition; what was lost stays lost."""
        if not self._dead:
            self._out.whole = self._in.whole = True

    def _die(self) -> bool:
        with self._lock:
            if self._dead:
                return False
            self._dead = True
            self._out.whole = self._in.whole = False
            return True

    def _send_on(self, message: Message) -> None:
        # A delayed message may find the stream closed; the sender hears of that from its inbox.
        with suppress(LinkClosed):
            self._inner.send(message)

    def _send_raw(self, frame: bytes) -> None:
        if isinstance(self._inner, _Frames):
            with suppress(LinkClosed):
                self._inner.send_frame(frame)

    def _put_on(self, message: Message) -> None:
        if self._inbox is not None:
            self._inbox.put(self, message)


class FaultyInbox(Inbox):
    """An inbox to give to a backend: its streams reach the owner of ``inner`` as ``FaultyStream``s.

    Args:
        inner: where messages end up; its owner reads from it.
        incoming: what happens to them.
        outgoing: what happens to what the owner sends on these streams.
        timer: needed for delay, jitter and reorder.
        first: number of the first stream; streams with different numbers draw different faults from one plan.
    """

    def __init__(
        self,
        inner: Inbox,
        incoming: FaultPlan = _NO_FAULTS,
        outgoing: FaultPlan = _NO_FAULTS,
        timer: Timer | None = None,
        *,
        first: int = 0,
    ) -> None:
        super().__init__()
        self._inner = inner
        self._plans = incoming, outgoing
        self._timer = timer
        self._wrappers: dict[int, FaultyStream] = {}
        self._number = first
        self._lock = threading.Lock()

    def wrap(self, stream: Stream) -> FaultyStream:
        """The wrapper that stands for ``stream``; the same one at every call while the stream lives."""
        with self._lock:
            wrapper = self._wrappers.get(id(stream))
            if wrapper is None:
                incoming, outgoing = self._plans
                wrapper = FaultyStream(
                    stream, outgoing, self._timer, inbox=self._inner, incoming=incoming, number=self._number
                )
                self._number += 1
                self._wrappers[id(stream)] = wrapper
            return wrapper

    @property
    def streams(self) -> list[FaultyStream]:
        """Wrappers of the streams seen so far that are not closed."""
        with self._lock:
            return [wrapper for wrapper in self._wrappers.values() if not wrapper.closed]

    def put(self, stream: Stream, message: Message | StreamClosed) -> None:
        wrapper = self.wrap(stream)
        if isinstance(message, StreamClosed):
            with self._lock:
                self._wrappers.pop(id(stream), None)
        wrapper.arrive(message)

    def wake(self) -> None:
        self._inner.wake()

    def drain_timed(self) -> list[tuple[Stream, Message | StreamClosed, float]]:
        return self._inner.drain_timed()

    def wait(self, timeout_s: float) -> bool:
        return self._inner.wait(timeout_s)

    def receive(self, timeout_s: float) -> Received | None:
        return self._inner.receive(timeout_s)


def faulty_connector(
    connect: Callable[[Inbox], Stream],
    *,
    incoming: FaultPlan = _NO_FAULTS,
    outgoing: FaultPlan = _NO_FAULTS,
    timer: Timer | None = None,
) -> Callable[[Inbox], FaultyStream]:
    """A connector whose streams misbehave.

    Args:
        connect: opens the real stream, given the inbox that it feeds.
        incoming: what happens to messages that arrive on it.
        outgoing: what happens to messages sent on it.
        timer: needed for delay, jitter and reorder.
    """
    made = 0

    def open_faulty(inbox: Inbox) -> FaultyStream:
        nonlocal made
        inlet = FaultyInbox(inbox, incoming, outgoing, timer, first=made)
        made += 1
        return inlet.wrap(connect(inlet))

    return open_faulty
