"""Starts the ranks beside rank 0: the seam, and child processes of this one."""

from __future__ import annotations

import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from ssd_cluster.config import ModelSettings, Settings, child_environment

_MODULE = "ssd_cluster.model.parallel.process"
_LOOPBACK = "127.0.0.1"


class RankOrder(Settings):
    """Everything a rank needs to know; crosses to it as JSON.

    ``host``, ``port``: where rank 0 listens. ``token``: secret of this start. ``timeout_s``: longest wait for another
    rank during a forward; ``start_timeout_s``: until all are there. ``device_index``: of the rank's GPU, if it has one.
    """

    model: ModelSettings
    rank: int
    size: int
    host: str
    port: int
    token: str
    timeout_s: float
    start_timeout_s: float
    device_index: int = 0
    tail_slots: int = 0
    tail_depth: int = 0


class RankLauncher(ABC):
    """Starts, watches and ends the ranks 1 to N-1.

    Attributes:
        address: of this machine, where rank 0 listens for the others.
        own_devices: whether every rank sees one GPU only, its own.
    """

    address: str
    own_devices: bool

    @abstractmethod
    def start(self, orders: Sequence[RankOrder]) -> None:
        """Start one rank per order; does not wait for them.

        Raises:
            StartupError: there is no room for one.
        """

    @abstractmethod
    def ended(self) -> str | None:
        """Which rank has ended, and how; None while all run. Returns at once."""

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Wait until all have ended by themselves, end the others by force; none is left afterwards."""


class LocalRanks(RankLauncher):
    """Ranks in child processes, which end when this process does, however that happens."""

    address = _LOOPBACK
    own_devices = False

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[str]] = []

    @property
    def pids(self) -> list[int]:
        """Of the ranks 1 to N-1."""
        return [child.pid for child in self._children]

    def start(self, orders: Sequence[RankOrder]) -> None:
        for order in orders:
            child = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                env=child_environment(order.model.compute_threads),
                text=True,
            )
            self._children.append(child)
            if child.stdin is not None:
                try:
                    child.stdin.write(order.model_dump_json() + "\n")
                    child.stdin.flush()
                except BrokenPipeError:
                    return  # it has ended; ``ended`` says so

    def ended(self) -> str | None:
        for rank, child in enumerate(self._children, start=1):
            if (code := child.poll()) is not None:
                return f"rank {rank} has ended with code {code}"
        return None

    def close(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for child in self._children:
            if child.stdin is not None:
                with suppress(BrokenPipeError):  # it has ended before it read its order
                    child.stdin.close()
        for child in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
