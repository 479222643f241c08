"""Rank 0's side of the other ranks: starting them, telling them what to run, noticing that one is gone."""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from ssd_cluster.config import ModelSettings
from ssd_cluster.errors import RankError, StartupError
from ssd_cluster.model.parallel.channel import Channel
from ssd_cluster.model.parallel.group import Group, open_group
from ssd_cluster.model.parallel.launcher import RankLauncher, RankOrder
from ssd_cluster.model.parallel.meeting import host_store, listen
from ssd_cluster.model.parallel.wire import Failed, Hello, Message, Ping, Pong, Ready, Stop, Welcome, encode

log = logging.getLogger(__name__)

PING_S = 1.0
_HELLO_S = 5.0
_CLOSE_S = 5.0


class Crew:
    """The ranks 1 to N-1 of one model.

    Args:
        settings: of the whole model.
        launcher: closed with the crew.
        start_timeout_s: longest wait until all ranks have loaded their part.

    Raises:
        StartupError: a rank did not come up; nothing is left behind.

    Attributes:
        group: for the exchange of tensors.
        failure: why no forward can run any more, or None.
    """

    def __init__(
        self,
        settings: ModelSettings,
        launcher: RankLauncher,
        device: torch.device,
        *,
        start_timeout_s: float,
        tail_slots: int,
        tail_depth: int,
    ) -> None:
        self.failure: str | None = None
        self._size = settings.tensor_parallel
        self._timeout_s = settings.rank_timeout_s
        self._launcher = launcher
        self._deadline = time.monotonic() + start_timeout_s
        self._channels: list[Channel] = []
        self._lock = threading.Lock()  # held while ranks are told something, until they have done it
        self._ending = threading.Lock()
        self._closed = threading.Event()
        self._monitor = threading.Thread(target=self._watch, name="ranks", daemon=True)
        token = secrets.token_hex(16)
        try:
            with listen(launcher.address) as listener:
                base = RankOrder(
                    model=settings.of_rank(0),
                    rank=0,
                    size=self._size,
                    host=launcher.address,
                    port=listener.getsockname()[1],
                    token=token,
                    timeout_s=self._timeout_s,
                    start_timeout_s=start_timeout_s,
                    tail_slots=tail_slots,
                    tail_depth=tail_depth,
                )
                launcher.start([self._order(base, settings, rank) for rank in range(1, self._size)])
                self._channels = self._greet(listener, token)
            self.group = self._meet(device)
        except BaseException as error:
            self._end(0.0)
            if isinstance(error, RankError):
                raise StartupError(error.message) from None
            raise

    def _order(self, base: RankOrder, settings: ModelSettings, rank: int) -> RankOrder:
        device = 0 if self._launcher.own_devices else rank
        return base.model_copy(update={"model": settings.of_rank(rank), "rank": rank, "device_index": device})

    def await_ready(self, model_hash: str) -> None:
        """Wait until all ranks have loaded, and begin to watch them.

        Raises:
            StartupError: one has failed, is late, or has another checkpoint.
        """
        for rank, channel in enumerate(self._channels, start=1):
            try:
                message = channel.receive(self._deadline - time.monotonic(), self._launcher.ended)
            except RankError as error:
                raise StartupError(f"rank {rank} did not start: {self._launcher.ended() or error.message}") from None
            if isinstance(message, Failed):
                raise StartupError(f"rank {rank} did not start: {message.message}")
            if message != Ready(model_hash):
                raise StartupError(
                    f"rank {rank} has another checkpoint than rank 0 ({message} instead of {model_hash})"
                )
        self._monitor.start()

    @contextmanager
    def running(self, message: Message) -> Iterator[None]:
        """Have all ranks run ``message`` while the caller does, in ``with``.

        ValueErrors of the caller are those that every rank raises before it exchanges anything. Anything else ends
        the crew: the ranks would not be in step any more.

        Raises:
            RankError: a rank is gone or does not answer.
        """
        with self._lock:
            if self.failure is not None:
                raise RankError(self.failure)
            try:
                frame = encode(message)
                for channel in self._channels:
                    channel.send_encoded(frame, self._timeout_s)
                yield
            except ValueError:
                raise
            except RankError as error:
                self._fail(error.message)
                raise RankError(self.failure or error.message) from None
            except BaseException as error:
                self._fail(f"rank 0 failed in a forward: {error!r}")
                raise

    def close(self) -> None:
        """End all ranks; none is left afterwards. Safe to call twice."""
        self.failure = self.failure or "the model runner is closed"
        if self._lock.acquire(timeout=_CLOSE_S):
            try:
                for channel in self._channels:
                    with suppress(RankError):
                        channel.send(Stop(), _CLOSE_S)
            finally:
                self._lock.release()
        self._end(_CLOSE_S)
        if self._monitor.is_alive() and self._monitor is not threading.current_thread():
            self._monitor.join(_CLOSE_S)

    def _greet(self, listener: socket.socket, token: str) -> list[Channel]:
        """The connections of all ranks, in their order; whoever does not know the token is turned away."""
        found: dict[int, Channel] = {}
        try:
            while len(found) < self._size - 1:
                if time.monotonic() > self._deadline:
                    raise RankError(f"{len(found)} of {self._size - 1} ranks came in time")
                if (reason := self._launcher.ended()) is not None:
                    raise RankError(f"{reason} before it connected; its log says why")
                try:
                    connection, peer = listener.accept()
                except TimeoutError:
                    continue
                channel = Channel(connection)
                try:
                    hello = channel.receive(_HELLO_S)
                except RankError:
                    hello = None
                if not isinstance(hello, Hello) or not _same(hello.token, token):
                    log.warning("rank_refused peer=%s", peer)
                    channel.close()
                    continue
                found[hello.rank] = channel
                if hello.error:
                    raise RankError(f"rank {hello.rank} did not start: {hello.error}")
        except BaseException:
            for channel in found.values():
                channel.close()
            raise
        return [found[rank] for rank in range(1, self._size)]

    def _meet(self, device: torch.device) -> Group:
        store, port = host_store(self._launcher.address, self._timeout_s)
        for channel in self._channels:
            channel.send(Welcome(port), self._timeout_s)
        return open_group(
            store, 0, self._size, device=device, address=self._launcher.address, timeout_s=self._timeout_s
        )

    def _watch(self) -> None:
        """Between forwards, ask all ranks whether they are there: one that is gone is noticed without any work."""
        while not self._closed.wait(min(PING_S, self._timeout_s / 2)):
            if (reason := self._launcher.ended()) is not None:
                self._fail(reason)
                return
            if not self._lock.acquire(blocking=False):
                continue
            try:
                if self.failure is None:
                    self._ping()
            finally:
                self._lock.release()

    def _ping(self) -> None:
        try:
            for channel in self._channels:
                channel.send(Ping(), self._timeout_s)
            for channel in self._channels:
                answer = channel.receive(self._timeout_s, self._launcher.ended)
                if not isinstance(answer, Pong):
                    raise RankError(answer.message if isinstance(answer, Failed) else f"a rank sent {answer}")
        except RankError as error:
            self._fail(error.message)

    def _fail(self, reason: str) -> None:
        if self.failure is None:
            self.failure = f"tensor parallelism failed: {self._launcher.ended() or reason}"
            log.critical("ranks_failed reason=%s", self.failure)
        self._end(0.0)

    def _end(self, timeout_s: float) -> None:
        self._closed.set()
        with self._ending:
            if timeout_s == 0.0:
                self._close_channels()
            self._launcher.close(timeout_s)
            self._close_channels()
            if hasattr(self, "group"):
                self.group.close()

    def _close_channels(self) -> None:
        for channel in self._channels:
            channel.close()


def _same(one: str, other: str) -> bool:
    return isinstance(one, str) and secrets.compare_digest(one.encode(), other.encode())
