"""Ranks in threads of this process, with the protocol of real ones, and what may be left of real ones."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.errors import SsdClusterError
from ssd_cluster.model.parallel.driver import ParallelRunner, load_parallel
from ssd_cluster.model.parallel.launcher import RankLauncher, RankOrder
from ssd_cluster.model.parallel.worker import serve_rank


class ThreadRanks(RankLauncher):
    """``change``: entries of every order to replace, for ranks that are not what rank 0 thinks."""

    address = "127.0.0.1"
    own_devices = False

    def __init__(self, **change: Any) -> None:
        self.errors: list[SsdClusterError] = []
        self._change = change
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, orders: Sequence[RankOrder]) -> None:
        for order in orders:
            changed = order.model_copy(update=self._change)
            thread = threading.Thread(target=self._serve, args=(changed,), name=f"rank-{order.rank}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, order: RankOrder) -> None:
        try:
            serve_rank(order, self.address, lambda: "the test is over" if self._stop.is_set() else None)
        except SsdClusterError as error:
            self.errors.append(error)

    def ended(self) -> str | None:
        dead = [thread.name for thread in self._threads if not thread.is_alive()]
        return f"{dead[0]} has ended" if dead else None

    def close(self, timeout_s: float) -> None:
        if timeout_s == 0:
            self._stop.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(10.0)
                assert not thread.is_alive(), "a rank does not end"


def load_ranks(folder: Path, size: int, launcher: RankLauncher | None = None, **settings: Any) -> ParallelRunner:
    """A float32 model over ``size`` ranks; in threads unless ``launcher`` says something else."""
    chosen = {"dtype": DType.FLOAT32, "kv_tokens": 1024, "rank_timeout_s": 20.0} | settings
    model = ModelSettings(path=str(folder), tensor_parallel=size, **chosen)
    return load_parallel(model, launcher if launcher is not None else ThreadRanks(), start_timeout_s=120.0)


def alive(pids: Sequence[int]) -> list[int]:
    """Those that still run; zombies do not."""
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
