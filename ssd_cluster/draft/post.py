"""Sends laws to targets: on the tensor channel of their stream where there is one, else in frames of the stream."""

from __future__ import annotations

import logging
import time
from contextlib import suppress

import torch

from ssd_cluster.config import LawTransport, LinkSettings
from ssd_cluster.errors import LinkClosed
from ssd_cluster.link.laws import law_bytes
from ssd_cluster.link.messages import Attach, Attached
from ssd_cluster.link.stream import Stream
from ssd_cluster.link.tensor.pairs import available
from ssd_cluster.link.tensor.rows import LawRows
from ssd_cluster.link.tensor.sender import LawSender

log = logging.getLogger(__name__)

_LEAVE_S = 3.0


class LawPost:
    """The laws that leave one draft; used by its engine's thread, which never waits here.

    Args:
        settings: of the link.
        device: of the model.
    """

    def __init__(self, settings: LinkSettings, device: torch.device) -> None:
        self._settings = settings
        self._device = device
        self._senders: dict[Stream, LawSender] = {}
        self._leaving: list[LawSender] = []
        self._logged = False

    def attach(self, stream: Stream, message: Attach, *, trusted: bool) -> None:
        """A target's part of a rendezvous; a new channel replaces the stream's older one.

        Args:
            stream: of the target.
            message: names the channel.
            trusted: the target is in our trust domain and uses laws.
        """
        sender = self._senders.get(stream)
        if sender is None or message.channel > sender.channel:
            refusal = self._refusal(message, trusted)
            if refusal is not None:
                with suppress(LinkClosed):
                    stream.send(Attached(message.channel, refusal=refusal))
                return
            self._retire(stream)
            if any(one.alive for one in self._leaving):
                return  # the target will try again; threads do not pile up
            numbers = message.channel, message.capacity
            sender = LawSender(stream.peer, *numbers, self._settings.tensor, self._device, stream.send)
            self._senders[stream] = sender
        if message.channel == sender.channel:
            sender.entry(message.key, message.value)

    def send(self, stream: Stream, law: LawRows) -> bool:
        """Send a law; False if it went nowhere: it fits no frame, and there is no tensor channel now."""
        sender = self._senders.get(stream)
        with suppress(LinkClosed):  # its end is in the inbox already or comes soon
            if sender is not None and sender.offer(law):
                return True
            size = law_bytes(law.kind, len(law.probabilities), law.width, law.width)
            if size > self._settings.frame_bytes:
                self._say_once(size)
                return False
            stream.send(law.packed())
        return True

    def forget(self, stream: Stream) -> None:
        """The stream has ended."""
        self._retire(stream)

    def close(self, timeout_s: float = _LEAVE_S) -> bool:
        """End all channels and wait for their threads; False if one has not ended by then."""
        for stream in list(self._senders):
            self._retire(stream)
        deadline = time.monotonic() + timeout_s
        return all(sender.join(max(0.0, deadline - time.monotonic())) for sender in self._leaving)

    def _refusal(self, message: Attach, trusted: bool) -> str | None:
        tensor = self._settings.tensor
        if self._settings.laws is not LawTransport.TENSOR:
            return "the draft sends laws over gRPC: set link.laws to 'tensor' on both sides"
        if not trusted:
            return "the draft sends no laws to this target"
        if message.backend != tensor.backend.value:
            return f"the draft uses backend {tensor.backend.value!r}: set the same link.tensor.backend on both sides"
        return available(tensor.backend, self._device)

    def _retire(self, stream: Stream) -> None:
        sender = self._senders.pop(stream, None)
        if sender is not None:
            sender.close()
        self._leaving = [one for one in self._leaving if one.alive] + ([sender] if sender is not None else [])

    def _say_once(self, size: int) -> None:
        if not self._logged:
            self._logged = True
            log.warning(
                "law_dropped bytes=%d frame_bytes=%d reason='no tensor channel and larger than a frame' (logged once)",
                size,
                self._settings.frame_bytes,
            )
