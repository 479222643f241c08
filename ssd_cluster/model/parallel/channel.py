"""Frames over a TCP connection between rank 0 and another rank; every wait has a deadline."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from ssd_cluster.errors import RankError
from ssd_cluster.model.parallel.wire import Message, decode, encode

_HEAD = struct.Struct("<I")
_MOST_BYTES = 1 << 28
_SLICE_S = 0.2


def _never() -> str | None:
    """Nothing ends the wait."""
    return None


class Channel:
    """One end. Used by one thread at a time, except for ``close``."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection

    def send(self, message: Message, timeout_s: float) -> None:
        """Hand a message over to the system.

        Raises:
            RankError: the other end is gone or takes nothing.
        """
        self.send_encoded(encode(message), timeout_s)

    def send_encoded(self, frame: bytes, timeout_s: float) -> None:
        """``send`` for a message that goes to several ranks.

        Raises:
            RankError: as there.
        """
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(_HEAD.pack(len(frame)) + frame)
        except OSError as error:
            raise RankError(f"a rank takes no message: {error}") from None

    def receive(self, timeout_s: float, ended: Callable[[], str | None] = _never) -> Message:
        """The next message.

        Args:
            timeout_s: longest wait for it.
            ended: asked a few times per second; a reason ends the wait.

        Raises:
            RankError: the other end is gone, nothing came in time, or ``ended`` gave this reason.
        """
        deadline = time.monotonic() + timeout_s
        (size,) = _HEAD.unpack(self._read(_HEAD.size, deadline, timeout_s, ended))
        if size > _MOST_BYTES:
            raise RankError(f"a rank announced a message of {size} bytes")
        return decode(self._read(size, deadline, timeout_s, ended))

    def close(self) -> None:
        """The other end sees it; safe to call twice and from any thread."""
        with suppress(OSError):  # not connected any more
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int, deadline: float, timeout_s: float, ended: Callable[[], str | None]) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RankError(f"a rank said nothing for {timeout_s:g} s")
            try:
                self._socket.settimeout(min(_SLICE_S, left))
                part = self._socket.recv(size - len(data))
            except TimeoutError:
                if (reason := ended()) is not None:
                    raise RankError(reason) from None
                continue
            except OSError as error:
                raise RankError(f"the connection to a rank broke: {error}") from None
            if not part:
                raise RankError("a rank has closed its connection")
            data += part
        return bytes(data)
