"""Stands between the streams of a target and its inbox: takes out what belongs to tensor channels.

Announcements must reach the helper thread while the engine is busy with its forward, so they are taken on the thread
that the stream delivers on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ssd_cluster.config import TensorSettings
from ssd_cluster.link.messages import Attached, CompleteLaw, Law, Message, StreamClosed
from ssd_cluster.link.stream import Inbox, Received, Stream
from ssd_cluster.link.tensor.receiver import LawReceiver
from ssd_cluster.link.tensor.rows import LawShape


class LawInlet(Inbox):
    """An inbox for connectors: everything but tensor channels goes on into ``inner``.

    Args:
        inner: of the engine.
        settings: of every channel.
        shape: largest law.
        device: of the model.
        read: turns ids (None: dense) and probabilities of a complete law into what its user wants; on helper threads.
            The tensors are views of a buffer that is used again once it returns.
        failed: called with the reason each time a channel could not be made or broke; on helper threads.
    """

    def __init__(
        self,
        inner: Inbox,
        settings: TensorSettings,
        shape: LawShape,
        device: torch.device,
        read: Callable[[Tensor | None, Tensor], object],
        failed: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._inner = inner
        self._settings = settings
        self._shape = shape
        self._device = device
        self._read = read
        self._failed = failed
        self._lock = threading.Lock()
        self._receivers: dict[int, LawReceiver] = {}
        self._leaving: list[LawReceiver] = []

    def attach(self, stream: Stream) -> None:
        """Make a channel beside a stream whose draft has been welcomed; one that it had already is kept."""

        def arrived(law: Law, ids: Tensor | None, probabilities: Tensor) -> None:
            self._inner.put(stream, CompleteLaw.of(law, self._read(ids, probabilities)))

        with self._lock:
            if id(stream) not in self._receivers and not stream.closed:
                self._receivers[id(stream)] = LawReceiver(
                    stream.peer, self._settings, self._shape, self._device, stream.send, arrived, self._failed
                )

    def detach(self, stream: Stream) -> None:
        """End the channel of a stream; does not wait for it."""
        with self._lock:
            receiver = self._receivers.pop(id(stream), None)
            if receiver is not None:
                receiver.close()
                self._leaving = [one for one in self._leaving if not one.join(0)] + [receiver]

    def close(self, timeout_s: float) -> bool:
        """End all channels and wait for their threads; False if one has not ended by then."""
        with self._lock:
            leaving = [*self._receivers.values(), *self._leaving]
            self._receivers.clear()
            self._leaving.clear()
        for receiver in leaving:
            receiver.close()
        deadline = time.monotonic() + timeout_s
        return all(receiver.join(max(0.0, deadline - time.monotonic())) for receiver in leaving)

    def put(self, stream: Stream, message: Message | StreamClosed) -> None:
        if isinstance(message, Attached):
            if (receiver := self._receiver(stream)) is not None:
                receiver.entry(message)
            return
        if isinstance(message, Law) and message.channel:
            if (receiver := self._receiver(stream)) is not None:
                receiver.expect(message)
            return
        if isinstance(message, StreamClosed):
            self.detach(stream)
        self._inner.put(stream, message)

    def _receiver(self, stream: Stream) -> LawReceiver | None:
        with self._lock:
            return self._receivers.get(id(stream))

    def wake(self) -> None:
        self._inner.wake()

    def drain(self) -> list[Received]:
        return self._inner.drain()

    def wait(self, timeout_s: float) -> bool:
        return self._inner.wait(timeout_s)

    def receive(self, timeout_s: float) -> Received | None:
        return self._inner.receive(timeout_s)
