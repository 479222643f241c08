"""The store through which the two ends of a pair find each other: its entries travel on the gRPC stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

from torch._C._distributed_c10d import Store

_MOST_ENTRIES = 64


class LinkStore(Store):
    """One end of a store of two: what is set here is told to the other end, what is told is found here.

    Calls come from the backend's C++ code, on the thread that makes the pair; ``put`` and ``close`` from any thread.

    Args:
        tell: takes (key, value) to the other end; must not block.
        alike: whether an entry of the other end is built as one of ours is, (ours, theirs).
        timeout_s: longest wait for an entry.
    """

    def __init__(
        self, tell: Callable[[str, bytes], None], timeout_s: float, alike: Callable[[bytes, bytes], bool]
    ) -> None:
        super().__init__()
        self._tell = tell
        self._alike = alike
        self._ours: dict[str, bytes] = {}
        self._timeout_s = timeout_s
        self._entries: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False

    def put(self, key: str, value: bytes) -> None:
        """An entry of the other end has come; more than 64 are dropped."""
        with self._changed:
            if len(self._entries) < _MOST_ENTRIES:
                self._entries[key] = value
                self._changed.notify_all()

    def close(self) -> None:
        """Let whoever waits give up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- what backends call

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._ours[key] = data
        self.put(key, data)
        self._tell(key, data)

    def get(self, key: str) -> bytes:
        self._await([key], self._timeout_s)
        value = self._entries[key]
        if key not in self._ours and not all(self._alike(ours, value) for ours in self._ours.values()):
            raise RuntimeError("the other end sent no rendezvous of this backend")
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        longest = self._timeout_s if timeout is None else min(self._timeout_s, timeout.total_seconds())
        self._await(keys, longest)

    def check(self, keys: list[str]) -> bool:
        with self._changed:
            return all(key in self._entries for key in keys)

    def delete_key(self, key: str) -> bool:
        with self._changed:
            return self._entries.pop(key, None) is not None

    def num_keys(self) -> int:
        with self._changed:
            return len(self._entries)

    def _await(self, keys: list[str], timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or all(key in self._entries for key in keys), timeout_s)
            if self._closed:
                raise RuntimeError("the channel is closed")
            if not all(key in self._entries for key in keys):
                raise RuntimeError(f"the other end did not answer within {timeout_s:g} s")
