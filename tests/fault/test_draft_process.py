"""A real draft process that is killed, stopped or silent in mid-stream: the text stays, and the draft is used again.

The target engine is stepped in the test's own process, so that every fault falls into a stream that is still running.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine_pair import draft_settings, stats
from support.equality import assert_same
from support.target_rig import Client, Rig, assert_clean, connect, drain, request, run, submit
from support.tiny import make_checkpoint, perturb

from ssd_cluster.config import DraftSettings, LinkSettings
from ssd_cluster.draft.launcher import DraftProcess
from ssd_cluster.link.grpc_backend import connect as connect_grpc
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.types import Mode

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
PATIENT = {"window": 1000, "retry_s": 0.05}  # on a busy machine a draft may be late: that is another test
REQUESTS = [
    request(f"r{i}", range(5 + 30 * i, 25 + 30 * i), temperature=temperature, seed=i, max_tokens=460, ignore_eos=True)
    for i, temperature in enumerate((0.0, 0.9))
]


class Drafts:
    """Draft processes, one after another; the connector always goes to the newest, as a name service would say."""

    def __init__(self, settings: DraftSettings, loop: LinkLoop) -> None:
        self._settings = settings
        self._loop = loop
        self.link = LinkSettings()
        self.current = DraftProcess(settings)

    def connect(self, inbox: Inbox) -> Stream:
        return connect_grpc(self.current.endpoint, inbox, self.link, self._loop)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.current.pid, number)

    def replace(self) -> None:
        self.current = DraftProcess(self._settings)

    def renew(self) -> None:
        """As new for the next test."""
        self.link = LinkSettings()
        if not self.current.alive:
            self.replace()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("process") / "target")


@pytest.fixture(scope="module")
def rig(target: Path) -> Rig:
    return Rig.load(target)


@pytest.fixture(scope="module")
def plain(rig: Rig) -> list[Client]:
    return run(rig.engine(Mode.AR), REQUESTS)


@pytest.fixture(scope="module")
def processes(target: Path) -> Iterator[Drafts]:
    settings = draft_settings(perturb(target, target.parent / "draft", 0.02), link=LinkSettings(session_ttl_s=60.0))
    with LinkLoop() as loop:
        made = Drafts(settings, loop)
        yield made
        made.current.close()


@pytest.fixture
def drafts(processes: Drafts) -> Drafts:
    processes.renew()
    return processes


def started(rig: Rig, drafts: Drafts, **settings: Any) -> tuple[TargetEngine, list[Client]]:
    """An engine whose requests are in mid-stream and have had some use of the draft."""
    speculation = {"k": 3, "miss_policy": "always_wait", "fallback": "none", "wait_ms": 500.0}
    breaker = {"window": 6, "retry_s": 0.05}
    fields: dict[str, Any] = {"speculation": speculation, "breaker": breaker, "link": drafts.link} | settings
    engine = rig.engine(Mode.SSD, [drafts.connect], **fields)
    connect(engine, PATIENCE_S)
    clients = submit(engine, REQUESTS)
    step_until(engine, clients, lambda: all_beyond(engine, [5, 5]), "both use the draft")
    return engine, clients


def accepted(engine: TargetEngine) -> list[int]:
    """Drafted tokens that each running request has taken over so far."""
    return [engine._live[one.request_id].stats.num_accepted_draft_tokens for one in REQUESTS]


def all_beyond(engine: TargetEngine, counts: list[int]) -> bool:
    return all(now > before for now, before in zip(accepted(engine), counts, strict=True))


def failures(engine: TargetEngine, reason: str) -> float:
    return engine.metrics.registry.get_sample_value("ssd:draft_failures_total", {"reason": reason}) or 0.0


def step_until(engine: TargetEngine, clients: list[Client], condition: Callable[[], bool], what: str) -> None:
    """Step, with pauses for the other process, until ``condition``; every request must still be running then."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        engine.step()
        assert all(client.finished is None for client in clients), f"the streams ended before: {what}"
        time.sleep(0.002)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def finish(rig: Rig, engine: TargetEngine, clients: list[Client], plain: list[Client], what: str) -> None:
    drain(engine)
    assert all(client.finished is not None and client.finished.error is None for client in clients)
    assert_same(rig, plain, clients, what)
    assert_clean(engine)
    engine.stop()


def test_killed_in_mid_stream(rig: Rig, drafts: Drafts, plain: list[Client], caplog: pytest.LogCaptureFixture) -> None:
    engine, clients = started(rig, drafts, breaker=PATIENT)
    before = drafts.current
    drafts.signal(signal.SIGKILL)
    step_until(engine, clients, lambda: failures(engine, "stream") > 0, "the loss is noticed")
    assert not any(engine.snapshot().sessions.values())
    before.close()
    for _ in range(5):
        engine.step()
    drafts.replace()  # a child is started while gRPC is at work here
    assert drafts.current.endpoint != before.endpoint
    connect(engine, PATIENCE_S)
    kept = accepted(engine)
    step_until(engine, clients, lambda: all_beyond(engine, kept), "the same requests use the new draft")
    assert failures(engine, "stream") == 1
    (line,) = warnings(caplog)
    assert line.startswith("draft_lost")
    finish(rig, engine, clients, plain, "killed")


def test_stopped_in_mid_stream(rig: Rig, drafts: Drafts, plain: list[Client], caplog: pytest.LogCaptureFixture) -> None:
    """SIGSTOP: nothing closes, nothing answers. Rounds are late until the breaker opens; SIGCONT brings it back."""
    engine, clients = started(rig, drafts)
    drafts.signal(signal.SIGSTOP)
    try:
        step_until(engine, clients, lambda: failures(engine, "late") > 0, "the breaker opens")
        assert engine.healthy()
        assert not any(engine.snapshot().sessions.values())
        said = warnings(caplog)
        assert [line.split()[0] for line in said] == ["draft_late"]
    finally:
        drafts.signal(signal.SIGCONT)
    kept = accepted(engine)
    step_until(engine, clients, lambda: all_beyond(engine, kept), "the same requests use the draft again")
    finish(rig, engine, clients, plain, "stopped")


def test_silent_for_longer_than_a_session_lives(
    rig: Rig, drafts: Drafts, plain: list[Client], caplog: pytest.LogCaptureFixture
) -> None:
    """The stream of a peer that says nothing ends like that of a dead one, also while nobody waits for it."""
    drafts.link = LinkSettings(ping_interval_s=0.1, session_ttl_s=1.0)
    engine, clients = started(rig, drafts, breaker=PATIENT)
    drafts.signal(signal.SIGSTOP)
    try:
        step_until(engine, clients, lambda: failures(engine, "stream") > 0, "the silence is noticed")
        assert not any(engine.snapshot().sessions.values())
        (line,) = warnings(caplog)
        assert "nothing heard" in line
    finally:
        drafts.signal(signal.SIGCONT)
    connect(engine, PATIENCE_S)
    finish(rig, engine, clients, plain, "silent")


def test_killed_while_the_engine_waits_for_it(rig: Rig, drafts: Drafts) -> None:
    """In mode sd every round waits for its chain; the end of the stream ends the wait, not its deadline."""
    speculation = {"k": 3, "wait_ms": 10_000.0, "fallback": "none"}
    engine = rig.engine(Mode.SD, [drafts.connect], speculation=speculation, breaker={"retry_s": 100.0})
    connect(engine, PATIENCE_S)
    short = request("short", REQUESTS[0].prompt_token_ids, temperature=0, max_tokens=40, ignore_eos=True)
    (client,) = submit(engine, [short])
    while not engine._live["short"].stats.num_draft_tokens:
        engine.step()
    session = engine._live["short"].choices[0].session
    assert session is not None
    drafts.signal(signal.SIGSTOP)
    threading.Timer(0.3, drafts.signal, [signal.SIGKILL]).start()
    drain(engine)
    assert_same(rig, run(rig.engine(Mode.AR), [short]), [client], "killed in a wait")
    deadline = time.monotonic() + PATIENCE_S
    while not failures(engine, "stream"):  # the last rounds may have been answered before the signal took effect
        assert time.monotonic() < deadline, "the loss is noticed"
        engine.step()
        time.sleep(0.01)
    assert failures(engine, "stream") == 1
    assert session.late_rounds == 0, "the deadline of the wait was never reached"
    assert stats(client).num_draft_tokens > 0
    engine.stop()
