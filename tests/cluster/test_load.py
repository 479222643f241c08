"""Load on one target takes the pool from one draft to three and back: no request is lost and no text changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.live_cluster import DEADLINE_S, Live, until
from support.pool_cluster import DRAFTS, Pool

from ssd_cluster.bench.scaling.client import Endpoint, Question
from ssd_cluster.bench.scaling.load import Load, plain_answers
from ssd_cluster.bench.scaling.watch import Watch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SCALING = {"min_replicas": 1, "max_replicas": 3, "upscale_delay_s": 0.2, "downscale_delay_s": 1.0}


def test_one_three_one(live: Live, tmp_path_factory: pytest.TempPathFactory) -> None:
    pool = Pool(live, tmp_path_factory.mktemp("small"))
    pool.deploy({}, draft_args={"autoscaling": SCALING, "session_credit": 3})
    pool.running(1)
    endpoint = Endpoint(f"http://127.0.0.1:{live.checkpoints.port}/big", None, DEADLINE_S)
    questions = [Question("once upon a time", seed, 200, 0.8) for seed in range(6)]
    load = Load(endpoint, plain_answers(endpoint, questions, lambda _: None))
    watch = Watch(endpoint.view, DRAFTS, 0.1)

    def serving(count: int) -> Callable[[], bool]:
        return lambda: bool(watch.moments) and watch.moments[-1].drafts == count

    outcomes = []
    try:
        for streams, drafts in ((1, 1), (6, 3), (1, 1)):
            outcomes.append(load.stage(streams))
            until(serving(drafts), f"{drafts} drafts serve {streams} streams")
            until(lambda: outcomes[-1].answers >= 3, "answers have come")
    finally:
        load.finish(DEADLINE_S)
        watch.close()
        endpoint.close()
    assert not [failure for outcome in outcomes for failure in outcome.failures]
    assert [outcome.different for outcome in outcomes] == [0, 0, 0]
    assert watch.moments[-1].hits > watch.moments[0].hits
