"""Both ends of a link in one process: messages are handed over by reference, or through the codec when asked."""

from __future__ import annotations

import threading
from contextlib import suppress

from ssd_cluster.errors import ConfigError, InvalidFrame, LinkClosed
from ssd_cluster.link.codec import FrameCodec, Side
from ssd_cluster.link.limits import MAX_INVALID_FRAMES, Limits
from ssd_cluster.link.messages import Message, Ping, Pong, StreamClosed
from ssd_cluster.link.stream import Inbox, Stream


class InProcessStream(Stream):
    """One end of an in-process link, made by ``pair``."""

    def __init__(self, side: Side, inbox: Inbox, codec: FrameCodec | None, lock: threading.Lock) -> None:
        self._side = side
        self._inbox = inbox
        self._codec = codec
        self._lock = lock
        self._closed = False
        self._other: InProcessStream | None = None

    def join(self, other: InProcessStream) -> None:
        self._other = other

    @property
    def peer(self) -> str:
        return "in-process draft" if self._side is Side.TARGET else "in-process target"

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, message: Message) -> None:
        other = self._other
        if self._closed or other is None:
            raise LinkClosed(f"the stream to the {self.peer} has ended")
        if self._codec is None:
            other.deliver(message)
            return
        frame = self._codec.encode(message)
        self.bytes_sent += len(frame)
        other.deliver_frame(frame)

    def deliver(self, message: Message) -> None:
        """A message from the other end; a Ping is answered here, as every backend does."""
        if self._closed:
            return
        if isinstance(message, Ping):
            with suppress(LinkClosed):
                self.send(Pong(message.token))
        else:
            self._inbox.put(self, message)

    def deliver_frame(self, frame: bytes) -> None:
        if self._codec is None:
            raise LinkClosed("this end takes messages, not frames")
        self.bytes_received += len(frame)
        try:
            message = self._codec.decode(frame)
        except InvalidFrame:
            self.frames_dropped += 1
            if self.frames_dropped > MAX_INVALID_FRAMES:
                self._break(f"{self.frames_dropped} invalid frames from the peer")
            return
        self.deliver(message)

    def _break(self, reason: str) -> None:
        if not self._closed:
            self.close(reason)
            self._inbox.put(self, StreamClosed(reason))

    def close(self, reason: str = "closed") -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            other = self._other
            if other is None or other._closed:
                return
            other._closed = True
        other._inbox.put(other, StreamClosed(reason))


def pair(
    target_inbox: Inbox, draft_inbox: Inbox, codec: bool = False, limits: Limits | None = None
) -> tuple[InProcessStream, InProcessStream]:
    """A connected pair of streams: (the target's end, the draft's end).

    Args:
        target_inbox: receives what the draft sends.
        draft_inbox: receives what the target sends.
        codec: pass every message through its frame, with full validation and byte counters.
        limits: caps of received frames; only with ``codec``.

    Raises:
        ConfigError: limits without codec.
    """
    if limits is not None and not codec:
        raise ConfigError("limits are checked by the codec: pass codec=True", param="limits")
    limits = limits if limits is not None else Limits()
    lock = threading.Lock()

    def end(side: Side, inbox: Inbox) -> InProcessStream:
        return InProcessStream(side, inbox, FrameCodec(side, limits) if codec else None, lock)

    target, draft = end(Side.TARGET, target_inbox), end(Side.DRAFT, draft_inbox)
    target.join(draft)
    draft.join(target)
    return target, draft
