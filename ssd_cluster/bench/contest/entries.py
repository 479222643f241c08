"""What takes part in a comparison, and keeping only so many of them running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ssd_cluster.bench.engines import WorkerEngine
from ssd_cluster.bench.handle import RunRecord, Workload
from ssd_cluster.bench.spec import EngineSpec


class Contender(Protocol):
    """Something that answers prompts, ready to run; used by one thread."""

    def run(self, workload: Workload) -> RunRecord:
        """Answer every prompt.

        Raises:
            SsdClusterError: a request failed, or nothing came within a deadline.
        """
        ...

    def close(self) -> None:
        """Stop what was started; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a comparison. ``name``: key of its records, the same in every run; ``start``: makes it ready."""

    name: str
    start: Callable[[], Contender]


def engine_entry(name: str, spec: EngineSpec) -> Entry:
    """An engine of ours in a process of its own."""
    return Entry(name, lambda: WorkerEngine(spec))


class Stable:
    """Running contenders, at most ``alive`` at a time; the one that rested longest makes room.

    Args:
        alive: at least 1.
        progress: told what is started.
    """

    def __init__(self, alive: int, progress: Callable[[str], None]) -> None:
        self._alive = alive
        self._progress = progress
        self._running: dict[str, Contender] = {}

    def take(self, entry: Entry) -> tuple[Contender, bool]:
        """The contender of an entry, and whether it had to be started."""
        contender = self._running.pop(entry.name, None)
        fresh = contender is None
        if contender is None:
            while len(self._running) >= self._alive:
                self._running.pop(next(iter(self._running))).close()
            self._progress(f"starting {entry.name}")
            contender = entry.start()
        self._running[entry.name] = contender
        return contender, fresh

    def close(self) -> None:
        """Stop all of them."""
        while self._running:
            self._running.popitem()[1].close()
