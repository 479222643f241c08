"""A stream to another process: queueing, pings, silence and garbage, on top of any frame transport.

Threads: ``send`` and ``close`` may be called from any thread; everything else runs on the link loop. One writer task
per stream takes frames from a bounded queue: one write is outstanding at a time, and many sends cost one wake-up.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import InvalidFrame, LinkClosed
from ssd_cluster.link.codec import FrameCodec, Side
from ssd_cluster.link.limits import MAX_INVALID_FRAMES, Limits
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import Message, Ping, Pong, StreamClosed, Welcome
from ssd_cluster.link.stream import Inbox, Stream

log = logging.getLogger(__name__)

KEEPALIVE_TOKEN = 0  # of the stream's own pings; pongs with another token go to the engine
LINGER_S = 1.0  # longest wait for queued frames and for the peer's end on a close
_MIN_TICK_S = 0.01


class Transport(ABC):
    """Frames in and out of one stream, on the link loop."""

    @abstractmethod
    async def read(self) -> bytes | None:
        """The next frame; None when the peer has ended its half.

        Raises:
            LinkClosed: the stream broke; the message says how.
        """

    @abstractmethod
    async def write(self, frame: bytes) -> None:
        """Send one frame; one call at a time.

        Raises:
            LinkClosed: the stream broke.
        """

    @abstractmethod
    async def end_writing(self) -> bool:
        """Tell the peer that no frame follows, where that can be told apart from the end of the stream.

        True: the peer will end its half in turn, which is worth waiting for.
        """

    @abstractmethod
    async def finish(self, reason: str, clean: bool) -> None:
        """Release everything; ``reason`` reaches the peer where the transport can carry it."""


class RemoteStream(Stream):
    """One end of a stream between two processes; ``run`` must be running on the loop while it is used."""

    def __init__(
        self,
        side: Side,
        peer: str,
        transport: Transport,
        inbox: Inbox,
        settings: LinkSettings,
        loop: LinkLoop,
        limits: Limits,
    ) -> None:
        self._side = side
        self._peer = peer
        self._transport = transport
        self._inbox = inbox
        self._settings = settings
        self._loop = loop
        self._codec = FrameCodec(side, limits)
        self._tick_s = max(_MIN_TICK_S, min(settings.ping_interval_s, settings.session_ttl_s / 4))
        self._lock = threading.RLock()  # re-entered when an inbox closes the stream that feeds it
        self._queue: deque[bytes] = deque()
        self._waking = False  # a wake-up of the writer is under way or it is at work
        self._ended = False
        self._reason = ""
        self._clean = False
        self._heard = False
        self._wake = asyncio.Event()
        self._abort = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def closed(self) -> bool:
        return self._ended

    @property
    def unsent(self) -> int:
        return len(self._queue)

    def send(self, message: Message) -> None:
        self.send_frame(self._codec.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Queue bytes as they are; ``send`` without the codec, for fault injection.

        Raises:
            LinkClosed: the stream has ended, or ends now because the queue is full.
        """
        with self._lock:
            if self._ended:
                raise LinkClosed(f"the stream to {self._peer} has ended: {self._reason}")
            full = len(self._queue) >= self._settings.send_queue
            wake = not full and not self._waking
            if not full:
                self._queue.append(frame)
                self._waking = True
                self.bytes_sent += len(frame)
        if full:
            reason = f"the peer does not read: {self._settings.send_queue} frames unsent"
            self._fail(reason)
            raise LinkClosed(f"the stream to {self._peer} has ended: {reason}")
        if wake:
            self._loop.post(self._wake.set)

    def close(self, reason: str = "closed") -> None:
        if self._end(reason, clean=True, announce=False):
            with suppress(LinkClosed):
                self._loop.post(self._begin_close)

    async def shutdown(self, reason: str) -> None:
        """Close and wait until everything is released; on the loop."""
        self.close(reason)
        await self._finished.wait()

    async def run(self) -> None:
        """The life of the stream; ends with it. Cancelling it breaks the stream."""
        self._loop.own(self)
        reader = asyncio.ensure_future(self._read())
        others = [asyncio.ensure_future(part) for part in (self._write(), self._watch(), self._aborted())]
        try:
            await asyncio.wait([reader, *others], return_when=asyncio.FIRST_COMPLETED)
            for part in others:
                part.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            drained = self._clean and not self._abort.is_set() and not reader.done()
            if drained and await self._transport.end_writing():
                await asyncio.wait([reader], timeout=LINGER_S)
        except asyncio.CancelledError:
            # gRPC cancels the handler of a peer that is gone.
            self._fail("the peer is gone")
        finally:
            for part in (reader, *others):
                part.cancel()
            await asyncio.gather(reader, *others, return_exceptions=True)
            self._fail("the stream ended")  # nothing, unless a part ended without saying why
            with suppress(LinkClosed):
                await self._transport.finish(self._reason, self._clean)
            self._loop.disown(self)
            self._finished.set()
            log.info("link ended side=%s peer=%s reason=%s", self._side, self._peer, self._reason)

    def _end(self, reason: str, clean: bool, announce: bool) -> bool:
        """Mark the end, once; the inbox hears of it in the same breath, so that nothing follows it there."""
        with self._lock:
            if self._ended:
                return False
            self._ended, self._reason, self._clean = True, reason, clean
            if not clean:
                self._queue.clear()
            if announce:
                self._inbox.put(self, StreamClosed(reason))
        return True

    def _fail(self, reason: str) -> None:
        if self._end(reason, clean=False, announce=True):
            with suppress(LinkClosed):
                self._loop.post(self._abort.set)

    def _begin_close(self) -> None:
        self._wake.set()
        asyncio.get_running_loop().call_later(LINGER_S, self._abort.set)

    async def _aborted(self) -> None:
        await self._abort.wait()

    async def _write(self) -> None:
        while True:
            with self._lock:
                frame = self._queue.popleft() if self._queue else None
                self._waking = frame is not None
                if frame is None and self._ended:
                    return
            if frame is None:
                await self._wake.wait()
                self._wake.clear()
                continue
            try:
                await self._transport.write(frame)
            except LinkClosed as error:
                self._fail(error.message)
                return

    async def _read(self) -> None:
        while True:
            try:
                frame = await self._transport.read()
            except LinkClosed as error:
                self._fail(error.message)
                return
            if frame is None:
                self._end("closed by the peer", clean=True, announce=True)
                return
            self._heard = True
            self.bytes_received += len(frame)
            most = self._codec.limits.frame_bytes
            if len(frame) > most:
                self.frames_dropped += 1
                self._fail(f"the peer sent a frame of {len(frame)} bytes, more than {most}")
                return
            try:
                message = self._codec.decode(frame)
            except InvalidFrame as error:
                if not self._tolerate(error):
                    return
                continue
            self._receive(message)

    def _tolerate(self, error: InvalidFrame) -> bool:
        self.frames_dropped += 1
        if self.frames_dropped == 1:
            log.warning("link peer=%s sent an invalid frame: %s", self._peer, error.message)
        if self.frames_dropped <= MAX_INVALID_FRAMES:
            return True
        self._fail(f"{self.frames_dropped} invalid frames from the peer")
        return False

    def _receive(self, message: Message) -> None:
        if isinstance(message, Ping):
            with suppress(LinkClosed):
                self.send(Pong(message.token))
            return
        if isinstance(message, Pong) and message.token == KEEPALIVE_TOKEN:
            return
        if isinstance(message, Welcome):
            # A draft with a shorter patience than ours must hear us more often.
            self._tick_s = max(_MIN_TICK_S, min(self._tick_s, message.session_ttl_s / 4))
        with self._lock:
            if not self._ended:
                self._inbox.put(self, message)

    async def _watch(self) -> None:
        """Pings (target side) and the end by silence, counted in ticks: a loop that was stalled tells nothing."""
        silence_s = 0.0
        while True:
            await asyncio.sleep(self._tick_s)
            silence_s = 0.0 if self._heard else silence_s + self._tick_s
            self._heard = False
            if silence_s >= self._settings.session_ttl_s:
                self._fail(f"nothing heard for {self._settings.session_ttl_s:g} s")
                return
            if self._side is Side.TARGET:
                with suppress(LinkClosed):
                    self.send(Ping(KEEPALIVE_TOKEN))
