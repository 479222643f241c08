"""One run: plain answers first, then the load stage by stage while the cluster is watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ssd_cluster.bench.scaling.client import Answer, Endpoint, Question
from ssd_cluster.bench.scaling.load import Load
from ssd_cluster.bench.scaling.profile import Stage
from ssd_cluster.bench.scaling.report import StageResult
from ssd_cluster.bench.scaling.watch import Watch


def drive(
    endpoint: Endpoint,
    expected: Sequence[tuple[Question, Answer]],
    stages: Sequence[Stage],
    *,
    pool: str | None,
    pace_s: float,
    drain_s: float,
    progress: Callable[[str], None],
) -> list[StageResult]:
    """Results per stage; the last one lasts until every request has ended.

    Args:
        endpoint: of a served target.
        expected: questions and the answers of plain decoding.
        stages: the load.
        pool: draft application to watch, None for all.
        pace_s: seconds between two looks at the cluster.
        drain_s: how long the last requests may take.
    """
    load = Load(endpoint, expected)
    watch = Watch(endpoint.view, pool, pace_s)
    marks: list[tuple[float, int]] = [(0.0, 0)]
    outcomes = []
    try:
        for number, stage in enumerate(stages, 1):
            outcomes.append(load.stage(stage.streams))
            progress(f"stage {number}/{len(stages)}: {stage.streams} streams for {stage.seconds:g} s")
            time.sleep(stage.seconds)
            if number == len(stages):
                load.finish(drain_s)
            marks.append((watch.now_s, len(watch.moments)))
    finally:
        load.finish(drain_s)
        watch.close()
    return [
        StageResult(stage, outcome, tuple(watch.moments[first:last]), began, ended)
        for stage, outcome, (began, first), (ended, last) in zip(stages, outcomes, marks, marks[1:], strict=False)
    ]
