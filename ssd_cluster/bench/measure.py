"""The measuring loop: every repetition runs every mode on the same work, in rotating order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ssd_cluster.bench.handle import EngineHandle, RunRecord, Workload
from ssd_cluster.bench.summary import ModeResult, differing_outputs, summarise


@dataclass(frozen=True, slots=True)
class Measurement:
    """Results of one workload for all engines.

    ``different_outputs``: per engine, prompts (of one repetition) whose output differs from that of the first one.
    """

    results: list[ModeResult]
    different_outputs: dict[str, int] = field(default_factory=dict)


def measure(
    engines: Sequence[EngineHandle], workload: Workload, repetitions: int, progress: Callable[[str], None]
) -> Measurement:
    """Run the workload ``repetitions`` times on every engine.

    Each engine first answers one batch that is not counted, so that none pays for warming up. Modes alternate within a
    repetition and their order rotates, so that drifts of the machine (heat, neighbours) hit all modes alike.

    Args:
        engines: with different names, in the order of the results.
        workload: the same for all.
        repetitions: at least 1.
        progress: told one line per run.
    """
    warm_up = workload.model_copy(update={"prompts": workload.prompts[: workload.batch]})
    for engine in engines:
        engine.run(warm_up)
    runs: dict[str, list[RunRecord]] = {engine.name: [] for engine in engines}
    for repetition, engine in schedule(engines, repetitions):
        record = engine.run(workload)
        runs[engine.name].append(record)
        speed = summarise(engine.mode, workload.temperature, workload.batch, [record]).tokens_per_s.median
        progress(f"repetition {repetition + 1}/{repetitions} {engine.name}: {speed:.1f} tokens/s")
    results = [summarise(e.mode, workload.temperature, workload.batch, runs[e.name], e.name) for e in engines]
    reference = runs[engines[0].name][0]
    different = {engine.name: differing_outputs(reference, runs[engine.name][0]) for engine in engines}
    return Measurement(results, different)


def schedule(engines: Sequence[EngineHandle], repetitions: int) -> Iterator[tuple[int, EngineHandle]]:
    """(repetition, engine) pairs: all engines in each repetition, each time starting with the next one."""
    for repetition in range(repetitions):
        first = repetition % len(engines)
        for engine in (*engines[first:], *engines[:first]):
            yield repetition, engine
