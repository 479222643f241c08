"""The target's end of a tensor channel: a helper thread that meets the draft, receives laws, and starts again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

import torch
from torch import Tensor

from ssd_cluster.config import TensorSettings
from ssd_cluster.errors import LinkClosed, LinkError
from ssd_cluster.link.messages import Attach, Attached, Law, Message
from ssd_cluster.link.tensor.pairs import TARGET_RANK, Pair, new_store, open_pair
from ssd_cluster.link.tensor.rows import LawShape, break_seal, entries_of, read
from ssd_cluster.link.tensor.store import LinkStore

log = logging.getLogger(__name__)

Arrived = Callable[[Law, Tensor | None, Tensor], None]
"""Takes a complete law, on the helper thread: its announcement, ids and probabilities as for ``rows.read``. The tensors
are views of a buffer that is used again once the call returns."""

_DOUBLINGS = 4
_MOST_EXPECTED = 256


class _Refused(LinkError):
    """The draft wants no channel."""


class LawReceiver:
    """Receives the laws that one draft announces on one stream.

    Args:
        peer: of the stream, for the log.
        settings: backend, address, deadlines.
        shape: largest law.
        device: of the model.
        send: sends a message on the stream.
        arrived: called with each complete law.
        failed: called with the reason, on the helper thread, each time a channel could not be made or broke.
    """

    def __init__(
        self,
        peer: str,
        settings: TensorSettings,
        shape: LawShape,
        device: torch.device,
        send: Callable[[Message], None],
        arrived: Arrived,
        failed: Callable[[str], None],
    ) -> None:
        self._peer = peer
        self._settings = settings
        self._shape = shape
        self._device = device
        self._send = send
        self._arrived = arrived
        self._failed = failed
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._channel = 0
        self._store: LinkStore | None = None
        self._expected: SimpleQueue[Law | None] = SimpleQueue()
        self._refusal = ""
        self._said = ""
        self._buffer: Tensor | None = None
        self._thread = threading.Thread(target=self._run, name="ssd-law-receiver", daemon=True)
        self._thread.start()

    # --- any thread; none of these blocks

    def entry(self, message: Attached) -> None:
        """The draft's part of a rendezvous."""
        with self._lock:
            store = self._store if message.channel == self._channel else None
            if store is not None and message.refusal:
                self._refusal = message.refusal
        if store is None:
            return
        if message.refusal:
            store.close()
        else:
            store.put(message.key, message.value)

    def expect(self, law: Law) -> None:
        """A law is on its way; one of an older channel never comes."""
        if law.channel == self._channel and self._expected.qsize() < _MOST_EXPECTED:
            self._expected.put(law)

    def close(self) -> None:
        """End the channel; a transfer that is under way is given up at its deadline at the latest."""
        self._closing.set()
        with self._lock:
            if self._store is not None:
                self._store.close()
            self._expected.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False if it has not by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the helper thread

    def _run(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                pair = self._meet()
                failures = 0
                self._say("")
                try:
                    self._receive(pair)
                finally:
                    pair.close()
            except LinkError as error:
                if self._closing.is_set():
                    return
                self._say(error.message)
                self._failed(error.message)
                if isinstance(error, _Refused):
                    return
            self._closing.wait(self._settings.retry_s * 2 ** min(failures, _DOUBLINGS))
            failures += 1

    def _meet(self) -> Pair:
        with self._lock:
            self._channel += 1
            channel = self._channel
            settings = self._settings
            store = new_store(settings.backend, lambda key, value: self._tell(channel, key, value), settings.timeout_s)
            self._store = store
            self._expected = SimpleQueue()
            if self._closing.is_set():  # close() may have looked before this store was there
                store.close()
        try:
            return open_pair(self._settings, store, TARGET_RANK, self._device)
        except LinkError:
            if self._refusal:
                raise _Refused(self._refusal) from None
            raise

    def _tell(self, channel: int, key: str, value: bytes) -> None:
        with suppress(LinkClosed):  # its end comes to the inbox
            self._send(Attach(channel, self._settings.backend.value, self._shape.entries, key, value))

    def _receive(self, pair: Pair) -> None:
        if self._buffer is None:
            self._buffer = torch.empty(self._shape.entries, dtype=torch.int32, device=pair.device)
        while (law := self._expected.get()) is not None and not self._closing.is_set():
            self._shape.check(law)
            size = entries_of(law.kind, len(law.row_size), law.row_size[0])
            break_seal(self._buffer[:size])
            pair.receive(self._buffer, size, law.transfer, self._settings.timeout_s)
            self._arrived(law, *read(law, self._buffer[:size]))

    def _say(self, reason: str) -> None:
        """Log the first failure and what changes; not each attempt of a draft that is away."""
        if reason and not self._said:
            log.warning("law_channel_broken peer=%s reason=%r (laws come over gRPC or not at all)", self._peer, reason)
        elif not reason:
            log.info("law_channel_ready peer=%s backend=%s", self._peer, self._settings.backend)
        self._said = reason
