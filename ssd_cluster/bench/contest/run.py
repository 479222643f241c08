"""Which runs a comparison needs, and making those that are missing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ssd_cluster.bench.contest.entries import Entry, Stable
from ssd_cluster.bench.handle import RunRecord, Workload
from ssd_cluster.bench.store import Store
from ssd_cluster.bench.summary import decode_speed


@dataclass(frozen=True, slots=True)
class Contest:
    """Entries that each run every workload ``repetitions`` times.

    In a repetition each entry runs all workloads before the next one does, and every repetition begins with another
    entry, so that drifts of the machine (heat, neighbours) hit all alike.
    """

    entries: Sequence[Entry]
    workloads: Sequence[Workload]
    repetitions: int

    @property
    def total(self) -> int:
        """Number of runs."""
        return len(self.entries) * len(self.workloads) * self.repetitions

    def missing(self, store: Store) -> Iterator[tuple[Entry, Workload, int]]:
        """Runs without a record, in order."""
        for repetition in range(self.repetitions):
            first = repetition % len(self.entries)
            for entry in (*self.entries[first:], *self.entries[:first]):
                for workload in self.workloads:
                    if key_of(entry.name, workload, repetition) not in store:
                        yield entry, workload, repetition

    def runs(self, name: str, workload: Workload, store: Store) -> list[RunRecord | None]:
        """What is there of one entry and workload, by repetition."""
        records = (store.get(key_of(name, workload, repetition)) for repetition in range(self.repetitions))
        return [RunRecord.model_validate(record) if record is not None else None for record in records]


def key_of(name: str, workload: Workload, repetition: int) -> str:
    """Key of one run's record."""
    return f"{name}|T={workload.temperature:g} B={workload.batch}|{repetition}"


def run_missing(
    contest: Contest,
    store: Store,
    *,
    alive: int,
    minutes: float | None,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Make and store the runs that are missing, for at most ``minutes``; returns how many are missing then.

    A contender that was just started, or has another workload, first answers one batch that is not counted. The run
    that is being made when the time is up is finished.

    Raises:
        SsdClusterError: a contender does not start, or a run fails.
    """
    todo = list(contest.missing(store))
    began = clock()
    stable = Stable(alive, progress)
    warm: dict[str, Workload] = {}
    try:
        for done, (entry, workload, repetition) in enumerate(todo):
            if minutes is not None and clock() - began >= 60 * minutes:
                return len(todo) - done
            contender, fresh = stable.take(entry)
            if fresh or warm.get(entry.name) is not workload:
                contender.run(workload.model_copy(update={"prompts": workload.prompts[: workload.batch]}))
                warm[entry.name] = workload
            record = contender.run(workload)
            store.add(key_of(entry.name, workload, repetition), compact(record).model_dump(mode="json"))
            left = (clock() - began) / (done + 1) * (len(todo) - done - 1) / 60
            progress(
                f"{done + 1}/{len(todo)} {entry.name} T={workload.temperature:g} B={workload.batch}: "
                f"{decode_speed(record.requests):.1f} tokens/s, {left:.0f} min left"
            )
    finally:
        stable.close()
    return 0


def compact(record: RunRecord) -> RunRecord:
    """The same with medians in place of samples."""
    samples = {"hit_path_s": record.hit_path_s, "hit_round_s": record.hit_round_s}
    return record.model_copy(
        update={name: (statistics.median(values),) if values else () for name, values in samples.items()}
    )
