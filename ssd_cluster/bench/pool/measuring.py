"""Runs cells: a fresh crowd of targets for each, on draft processes that stay, repetitions interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from ssd_cluster.bench.pool.cells import Cell
from ssd_cluster.bench.pool.crowd import Crowd, Observed, World
from ssd_cluster.bench.store import Record, Store
from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.launcher import DraftProcess
from ssd_cluster.link.loop import LinkLoop

_ROWS = "ssd:draft_row_steps_total"
_NACKS = "ssd:draft_nacks_total"


class Measuring:
    """Measures cells; used in ``with``, which ends the drafts.

    Args:
        world: what the targets share.
        drafts: settings by name; each is started when the first cell wants it.
        warm_up_s, seconds: what each crowd works before it is counted, and while it is.
        progress: told one line per cell.
    """

    def __init__(
        self,
        world: World,
        drafts: Mapping[str, DraftSettings],
        *,
        warm_up_s: float,
        seconds: float,
        progress: Callable[[str], None],
    ) -> None:
        self._world = world
        self._settings = drafts
        self._warm_up_s = warm_up_s
        self._seconds = seconds
        self._progress = progress
        self._drafts: dict[str, DraftProcess] = {}
        self._stack = ExitStack()
        self._loop: LinkLoop | None = None

    def run(self, cells: Sequence[Cell], repetitions: int, store: Store) -> None:
        """Measure what the store lacks: every repetition runs every cell, each time starting with the next one.

        Raises:
            StartupError: a draft does not start, or a target does not find it.
            EngineStopped: a target or draft has failed.
        """
        for repetition in range(repetitions):
            first = repetition % len(cells)
            for cell in (*cells[first:], *cells[:first]):
                key = repetition_key(cell, repetition)
                if key not in store:
                    store.add(key, self._measure(cell))
                    self._progress(f"repetition {repetition + 1}/{repetitions} {cell.figure}: {cell.name}")

    def _measure(self, cell: Cell) -> Record:
        drafts = [self._draft(name) for name in cell.drafts]
        draft = drafts[0] if drafts else None
        cpu = [0.0, 0.0]

        def look() -> dict[str, Any] | None:
            cpu[:] = cpu[1], time.process_time()
            return draft.report() if draft is not None else None

        with Crowd(self._world, cell.plans, [one.endpoint for one in drafts], self._links()) as crowd:
            crowd.start()
            crowd.run(self._warm_up_s)
            observed, before, after = crowd.measure(self._seconds, look)
        return {
            "targets": [_target_record(one) for one in observed],
            "targets_cpu": (cpu[1] - cpu[0]) / observed[0].seconds,
            "draft": _draft_record(before, after) if before is not None and after is not None else None,
        }

    def _links(self) -> LinkLoop:
        if self._loop is None:
            self._loop = self._stack.enter_context(LinkLoop())
        return self._loop

    def _draft(self, name: str) -> DraftProcess:
        if name not in self._drafts:
            self._progress(f"starting the draft ({name})")
            self._drafts[name] = self._stack.enter_context(DraftProcess(self._settings[name]))
        return self._drafts[name]

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def repetition_key(cell: Cell, repetition: int) -> str:
    """Name of one measurement's record."""
    return f"{cell.key}|{repetition}"


def _target_record(observed: Observed) -> Record:
    plan = observed.plan
    return {
        "name": plan.name,
        "batch": plan.batch,
        "mode": plan.mode.value,
        "client": plan.client.value,
        "one_way_ms": plan.one_way_ms,
        **asdict(observed.counts),
        "lookups": observed.lookups,
        "seconds": observed.seconds,
        "round_ms": observed.round_ms,
        "overhead_ms": observed.overhead_ms,
    }


def _draft_record(before: Mapping[str, Any], after: Mapping[str, Any]) -> Record:
    """What the draft did between two of its reports; its peaks are since its start."""

    def grown(start: str) -> float:
        names = [name for name in after["metrics"] if name == start or name.startswith(start + "{")]
        return float(sum(after["metrics"][name] - before["metrics"].get(name, 0.0) for name in names))

    steps = grown("ssd:draft_steps_total")
    seconds = grown("ssd:draft_step_seconds_total")
    return {
        "busy": seconds / (after["at"] - before["at"]),
        "step_ms": 1e3 * seconds / steps if steps else 0.0,
        "rows_per_step": grown(_ROWS) / steps if steps else 0.0,
        "refused": grown(_NACKS),
        "lateness": after["snapshot"]["lateness"],
        "sessions": after["snapshot"]["sessions"],
        "peaks": after["snapshot"]["peaks"],
    }
