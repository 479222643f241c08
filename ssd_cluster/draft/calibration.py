"""Start-up measurement of the step time: real forwards of tree rows, on pages and tails that are free then."""

from __future__ import annotations

from collections.abc import Callable

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.timing import StepTimer
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.runner import ModelRunner

_REPEATS = 3
_ENOUGH_S = 0.3


def calibrate(runner: ModelRunner, timer: StepTimer, settings: DraftSettings, clock: Callable[[], float]) -> None:
    """Measure forwards from 1 row to a full step; the first run of each size warms up and is not counted.

    Args:
        runner: the draft model; nothing else may run on it.
        timer: receives the best time of each size.
        settings: ``max_step_rows`` is the larger size.
        clock: seconds, monotonic.

    Raises:
        OutOfBlocks: the KV pool has no free page.
    """
    pages = runner.pool.allocate(1)
    tails = runner.tails.allocate(min(settings.max_step_rows, runner.tails.n_free)) if runner.tails is not None else []
    try:
        runner.forward(ForwardBatch([CausalSpan([0], 0, pages)]))
        for rows in sorted({1, max(1, len(tails) // 4), max(1, len(tails))}):
            batch = ForwardBatch([_rows(rows, pages, tails)])
            runner.forward(batch)
            times: list[float] = []
            while len(times) < _REPEATS and (not times or sum(times) < _ENOUGH_S):
                started = clock()
                runner.forward(batch)
                times.append(clock() - started)
            timer.observe(rows, min(times))
    finally:
        runner.pool.free(pages)
        if tails and runner.tails is not None:
            runner.tails.free(tails)


def _rows(rows: int, pages: list[int], tails: list[int]) -> CausalSpan | TreeSpan:
    if not tails:
        return CausalSpan([0], 0, pages)
    return TreeSpan([0] * rows, pages, [1] * rows, tails[:rows], [0] * rows)
