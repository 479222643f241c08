"""Two real drafts become one while streams are open: sessions move, nothing is lost, the text stays."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from support.engine_pair import SteppedPair, draft_settings
from support.equality import assert_same
from support.target_rig import Rig, request, run, submit
from support.tiny import make_checkpoint, perturb

from ssd_cluster.types import Mode


def test_two_drafts_become_one_with_streams_open(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig.load(make_checkpoint(tmp_path / "target"))
    draft = perturb(tmp_path / "target", tmp_path / "draft", 0.02)
    requests = [
        request(f"r{i}", range(5 + 30 * i, 25 + 30 * i), temperature=0.8, seed=i, max_tokens=36, ignore_eos=True)
        for i in range(4)
    ]
    plain = run(rig.engine(Mode.AR), requests)
    pair = SteppedPair(rig, draft_settings(draft), n_drafts=2)
    pair.connect()
    clients = submit(pair.engine, requests)
    for _ in range(4):
        pair.step()
    leaving, staying = pair.drafts
    assert (leaving.n_sessions, staying.n_sessions) == (2, 2)
    leaving.drain()
    pair.step()  # the draft says so
    pair.step()  # the target moves
    assert (leaving.n_sessions, staying.n_sessions) == (0, 4)
    free = leaving.snapshot().free_blocks
    leaving.stop()
    pair.drafts.remove(leaving)
    assert free == leaving._runner.pool.n_total
    assert all(client.finished is None for client in clients), "the streams are still open"
    before = [pair.engine._live[one.request_id].stats.num_accepted_draft_tokens for one in requests]
    with caplog.at_level(logging.WARNING):
        pair.drain()
    for client, plain_client, used in zip(clients, plain, before, strict=True):
        assert client.finished is not None
        assert client.finished.error is None
        assert client.tokens == plain_client.tokens
        assert client.finished.speculation.num_accepted_draft_tokens > used, "the draft that stays is used"
    assert_same(rig, plain, clients, "drained")
    again = pair.run(requests[:1])
    assert_same(rig, plain[:1], again, "afterwards")
    pair.close()
