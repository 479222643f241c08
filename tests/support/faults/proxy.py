"""A TCP proxy that can stop carrying bytes without closing anything: a network that is cut and heals."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Carries connections on a loopback port of its own to ``port``; while it is cut, bytes and connections wait.

    Attributes:
        endpoint: host:port to connect to.
    """

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._whole = threading.Event()
        self._whole.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self._whole.set()

    def close(self) -> None:
        """End every connection; threads that wait in a cut end with it."""
        self._listener.close()
        self.heal()
        for one in list(self._sockets):
            _end(one)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        self._whole.wait()
        try:
            onward = socket.create_connection(self._to, timeout=5)
        except OSError:
            connection.close()
            return
        onward.settimeout(None)
        self._sockets += [connection, onward]
        threading.Thread(target=self._pump, args=(onward, connection), daemon=True).start()
        self._pump(connection, onward)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                sink.sendall(data)
        _end(source)
        _end(sink)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
