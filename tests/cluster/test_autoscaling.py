"""A pool that starts with no draft: waiting leases bring one up, quiet takes it down, and no text changes."""

from __future__ import annotations

import pytest
from support.live_cluster import Live, Reference, until
from support.pool_cluster import Pool, expected

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_the_pool_comes_from_nothing_and_goes_again(
    live: Live, reference: Reference, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pool = Pool(live, tmp_path_factory.mktemp("small"))
    scaling = {"min_replicas": 0, "max_replicas": 2, "upscale_delay_s": 0.2, "downscale_delay_s": 1.0}
    pool.deploy({}, draft_args={"autoscaling": scaling})
    pool.running(0)
    reader = pool.read("big", n=2, seed=1)
    until(lambda: "RUNNING" in pool.states(), "the waiting leases have brought a draft up")
    until(lambda: pool.sessions("big") == 2, "it has the sessions")
    assert reader.finish() == [expected(reference, n=2, seed=1)]
    until(lambda: pool.states() == [], "without sessions the draft goes")
    again = pool.read("big", n=2, seed=2)
    assert again.finish() == [expected(reference, n=2, seed=2)]
