"""Two target models share a pool of drafts: leases appear and vanish, drafts come, go and die, and no text changes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from support.live_cluster import Live, Reference, until
from support.pool_cluster import Pool, expected

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def pool(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Pool:
    made = Pool(live, tmp_path_factory.mktemp("small"))
    made.deploy({"num_replicas": 2}, draft_args={})
    made.running(2)
    return made


@pytest.fixture(scope="module")
def small(pool: Pool) -> Iterator[Reference]:
    engine = Reference(pool.models["small"])
    yield engine
    engine.close()


def test_two_targets_share_the_pool_and_say_what_they_would_alone(
    pool: Pool, reference: Reference, small: Reference
) -> None:
    assert pool.leases() == 0
    big, little = pool.read("big", n=3, seed=1), pool.read("small", n=2, seed=2)
    until(lambda: (pool.sessions("big"), pool.sessions("small"), pool.leases()) == (3, 2, 5), "all have their sessions")

    def hits() -> bool:
        links = [link for one in pool.view()["targets"] if one["model"] in pool.models for link in one["drafts"]]
        return sum((link["hit_rate"] or 0.0) > 0 for link in links) >= 2

    until(hits, "both targets have hits")
    until(lambda: pool.rows() == 5 * 4, "the drafts see the rows that are asked for")
    assert big.finish() == [expected(reference, n=3, seed=1)]
    assert little.finish() == [expected(small, n=2, seed=2)]
    until(lambda: pool.leases() == 0, "all leases have been given back")


def test_a_disconnect_gives_the_leases_back(pool: Pool) -> None:
    body = {"prompt": "x", "max_tokens": 3900, "ignore_eos": True, "n": 2, "stream": True}
    with pool.live.raw_post("/big/v1/completions", body):
        until(lambda: pool.leases() == 2, "the sessions have leases")
    until(lambda: pool.leases() == 0 and not pool.holders("big"), "leases and sessions are gone")


def test_a_killed_draft_loses_its_sessions_to_the_other(pool: Pool, reference: Reference) -> None:
    reader = pool.read("big", n=3, seed=3)
    until(lambda: pool.sessions("big") == 3, "the drafts hold the sessions")
    victim = next(iter(pool.holders("big")))
    os.kill(pool.drafts()[victim]["pid"], signal.SIGKILL)
    until(lambda: victim not in pool.drafts() and pool.sessions("big") == 3, "another draft has taken over")
    assert reader.finish() == [expected(reference, n=3, seed=3)]
    until(lambda: pool.leases() == 0, "all leases have been given back")
    pool.running(2)


def test_drafts_scale_down_and_up_with_streams_open(pool: Pool, reference: Reference, small: Reference) -> None:
    big, little = pool.read("big", n=2, seed=4), pool.read("small", n=2, seed=5)
    until(lambda: pool.sessions("big") == pool.sessions("small") == 2, "both have sessions")
    lost = pool.lost_streams()
    pool.deploy({"num_replicas": 1}, draft_args={})
    until(lambda: pool.states() == ["RUNNING"], "one draft is left")
    (left,) = pool.drafts()
    until(lambda: pool.holders("big") == pool.holders("small") == {left: 2}, "all sessions are there")
    pool.deploy({"num_replicas": 2}, draft_args={})
    pool.running(2)
    assert big.finish() == [expected(reference, n=2, seed=4)]
    assert little.finish() == [expected(small, n=2, seed=5)]
    assert pool.lost_streams() == lost, "sessions had left before their draft went"
    until(lambda: pool.leases() == 0, "all leases have been given back")
