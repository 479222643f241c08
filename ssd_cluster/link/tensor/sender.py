"""The draft's end of a tensor channel: a helper thread that meets the target, copies laws and sends them."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from ssd_cluster.config import TensorSettings
from ssd_cluster.errors import LinkClosed, LinkError
from ssd_cluster.link.messages import Attached, Message
from ssd_cluster.link.tensor.pairs import DRAFT_RANK, Pair, new_store, open_pair
from ssd_cluster.link.tensor.rows import LawRows

log = logging.getLogger(__name__)

_MOST_QUEUED = 64


class LawSender:
    """Sends laws to one target; one attempt, which ends when the channel breaks.

    Args:
        peer: of the stream, for the log.
        channel: number of the target's attempt.
        capacity: most entries of a transfer.
        settings: backend, address, deadlines.
        device: of the model.
        send: sends a message on the stream.
    """

    def __init__(
        self,
        peer: str,
        channel: int,
        capacity: int,
        settings: TensorSettings,
        device: torch.device,
        send: Callable[[Message], None],
    ) -> None:
        self.channel = channel
        self._peer = peer
        self._capacity = capacity
        self._settings = settings
        self._device = device
        self._send = send
        self._store = new_store(settings.backend, self._tell, settings.timeout_s)
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, LawRows]] = deque()
        self._ready = False
        self._closing = False
        self._transfers = 0
        self._buffer: Tensor | None = None
        self._thread = threading.Thread(target=self._run, name="ssd-law-sender", daemon=True)
        self._thread.start()

    # --- any thread; none of these blocks

    @property
    def alive(self) -> bool:
        """Whether the helper thread is at work."""
        return self._thread.is_alive()

    def entry(self, key: str, value: bytes) -> None:
        """The target's part of the rendezvous."""
        self._store.put(key, value)

    def offer(self, law: LawRows) -> bool:
        """Announce a law and queue it; False if it cannot go this way now.

        Raises:
            LinkClosed: the stream has ended.
        """
        with self._changed:
            fits = law.even and law.entries <= self._capacity
            if not fits or not self._ready or len(self._queue) >= _MOST_QUEUED:
                return False
            number = self._transfers
            self._send(law.announcement(self.channel, number))
            self._transfers += 1
            self._queue.append((number, law))
            self._changed.notify()
        return True

    def close(self) -> None:
        """End the channel; a transfer that is under way is given up at its deadline at the latest."""
        with self._changed:
            self._closing = True
            self._ready = False
            self._queue.clear()
            self._changed.notify()
        self._store.close()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; False if it has not by then."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- the helper thread

    def _tell(self, key: str, value: bytes) -> None:
        with suppress(LinkClosed):  # its end comes to the inbox
            self._send(Attached(self.channel, key, value))

    def _run(self) -> None:
        pair: Pair | None = None
        try:
            pair = open_pair(self._settings, self._store, DRAFT_RANK, self._device)
            with self._changed:
                self._ready = not self._closing
            while (item := self._next()) is not None:
                number, law = item
                pair.send(self._filled(law, number, pair.device), number, self._settings.timeout_s)
        except LinkError as error:
            if not self._closing:
                log.warning("law_channel_broken peer=%s reason=%r (laws go over gRPC)", self._peer, error.message)
        finally:
            self.close()
            if pair is not None:
                pair.close()

    def _next(self) -> tuple[int, LawRows] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._queue)
            return None if self._closing else self._queue.popleft()

    def _filled(self, law: LawRows, number: int, device: torch.device) -> Tensor:
        """The law in the buffer that all transfers share; it grows to the largest of them."""
        size = law.entries
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = torch.empty(size, dtype=torch.int32, device=device)
        law.write(self._buffer[:size], number)
        return self._buffer[:size]
