"""Losslessness with the real draft engine over the in-process link, and that its blocks are really used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.equality import assert_same
from support.target_rig import Client, Rig, assert_clean, connect, request, run, submit
from support.tiny import make_checkpoint, perturb

from ssd_cluster.config import DraftSettings, DType, ModelSettings
from ssd_cluster.draft.engine import DraftEngine, load_draft
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import Mode

PROMPTS = [range(5, 45), range(60, 77), range(100, 163), [11, 12, 13, 14, 15] * 5]
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0},
]


@dataclass
class Pair:
    """A target rig and a draft engine that runs in its own thread."""

    rig: Rig
    draft: DraftEngine
    inbox: Inbox
    codec: bool = False

    def connect(self, target_inbox: Inbox) -> Stream:
        return pair(target_inbox, self.inbox, codec=self.codec)[0]

    def await_idle(self) -> None:
        """Wait until every session and block of the draft is free again."""
        deadline = time.monotonic() + 10
        while self.draft.n_sessions and time.monotonic() < deadline:
            time.sleep(0.005)
        assert self.draft.n_sessions == 0


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target")
    return target, perturb(target, folder / "draft", 0.03)


def draft_settings(folder: Path) -> DraftSettings:
    model = ModelSettings(path=str(folder), dtype=DType.FLOAT32, kv_tokens=4096, block_size=8)
    return DraftSettings(model=model, k_max=8)


@pytest.fixture(scope="module")
def both(folders: tuple[Path, Path]) -> Iterator[Pair]:
    inbox = Inbox()
    draft = load_draft(draft_settings(folders[1]), inbox)
    draft.start()
    yield Pair(Rig.load(folders[0]), draft, inbox)
    assert draft.stop()


def batch(size: int = 4, **fields: Any) -> list[GenerationRequest]:
    return [
        request(f"r{i}", PROMPTS[i % 4], **({"seed": 50 + i, "max_tokens": 24} | SAMPLING[i % 4] | fields))
        for i in range(size)
    ]


def accepted(clients: list[Client]) -> int:
    stats = [client.finished.speculation for client in clients if client.finished is not None]
    return sum(one.num_accepted_draft_tokens for one in stats)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("mode", [Mode.SD, Mode.SSD])
def test_the_draft_engine_changes_no_text(both: Pair, mode: Mode, k: int) -> None:
    plain = run(both.rig.engine(Mode.AR), batch())
    for settings in ({}, {"prefill_chunk": 7}, {"blocks": 14}):
        speculation = {"k": k, "wait_ms": 2000.0, "miss_policy": "always_wait"}
        engine = both.rig.engine(mode, [both.connect], speculation=speculation, **settings)
        connect(engine)
        for turn in range(2):
            got = run(engine, batch())
            assert_same(both.rig, plain, got, f"{mode} k={k} {settings} turn {turn}")
            assert accepted(got) > 0
        assert_clean(engine)
        engine.stop()
    both.await_idle()


@pytest.mark.parametrize("policy", ["rule", "never_wait"])
def test_late_blocks_of_the_draft_engine_change_no_text(both: Pair, policy: str) -> None:
    plain = run(both.rig.engine(Mode.AR), batch())
    engine = both.rig.engine(Mode.SSD, [both.connect], speculation={"k": 4, "miss_policy": policy})
    connect(engine)
    for one in (batch(), batch()[:1], batch(2)):
        got = run(engine, one)
        assert_same(both.rig, plain[: len(one)], got, f"ssd {policy}")
    assert_clean(engine)
    engine.stop()
    both.await_idle()


def test_blocks_that_come_in_time_are_hits(folders: tuple[Path, Path]) -> None:
    """The draft is stepped between the rounds until it has nothing left to do."""
    rig, inbox = Rig.load(folders[0]), Inbox()
    draft = load_draft(draft_settings(folders[1]), inbox)
    one = batch(4, max_tokens=32)
    plain = run(rig.engine(Mode.AR), one)
    speculation = {"k": 4, "rows": 16, "miss_policy": "never_wait"}
    engine = rig.engine(Mode.SSD, [lambda target_inbox: pair(target_inbox, inbox)[0]], speculation=speculation)
    while not engine.drafts.ready:
        engine.step()
        draft.step()
    clients = submit(engine, one)
    while engine.snapshot().requests:
        engine.step()
        while draft.step():
            pass
    assert_same(rig, plain, clients, "ssd in time")
    value = engine.metrics.registry.get_sample_value
    counts = {
        kind: value("ssd:cache_lookups_total", {"result": kind}) or 0 for kind in ("hit", "miss", "late", "stale")
    }
    assert counts["hit"] > counts["miss"] + counts["late"] + counts["stale"], counts
    assert accepted(clients) > 0
    assert_clean(engine)
    engine.stop()
    draft.stop()


def test_through_the_codec(both: Pair) -> None:
    plain = run(both.rig.engine(Mode.AR), batch())
    framed = Pair(both.rig, both.draft, both.inbox, codec=True)
    for mode in (Mode.SD, Mode.SSD):
        speculation = {"k": 4, "wait_ms": 2000.0, "miss_policy": "always_wait"}
        engine = both.rig.engine(mode, [framed.connect], speculation=speculation)
        connect(engine)
        got = run(engine, batch())
        assert_same(both.rig, plain, got, f"{mode} codec")
        assert accepted(got) > 0
        engine.step()
        assert (engine.metrics.registry.get_sample_value("ssd:link_bytes_total", {"direction": "sent"}) or 0) > 500
        assert (engine.metrics.registry.get_sample_value("ssd:link_bytes_total", {"direction": "received"}) or 0) > 100
        engine.stop()
    both.await_idle()


def test_aborts_free_the_sessions_of_the_draft_too(both: Pair) -> None:
    engine = both.rig.engine(Mode.SSD, [both.connect], speculation={"k": 4})
    connect(engine)
    free = both.draft.snapshot().free_blocks
    for turn in range(12):
        clients = submit(engine, batch(max_tokens=60))
        for _ in range(turn):
            engine.step()
        for client in clients:
            engine.abort(client.request.request_id)
        engine.step()
        assert all(client.finished is not None for client in clients)
    both.await_idle()
    assert both.draft.snapshot().free_blocks == free
    assert_clean(engine)
    engine.stop()
