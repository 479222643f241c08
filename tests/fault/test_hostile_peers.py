"""Peers that mean harm, at a real draft process: whatever they send, another target keeps its text and its draft."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from support.certificates import write_secrets
from support.engine_pair import draft_settings
from support.equality import assert_same
from support.intruder import Intruder
from support.links import commit_row
from support.target_rig import Client, Rig, assert_clean, connect, drain, request, run, submit
from support.tiny import make_checkpoint, perturb

from ssd_cluster.config import LinkSettings
from ssd_cluster.config_link import TargetLimits
from ssd_cluster.draft.launcher import DraftProcess
from ssd_cluster.link.grpc_backend import connect as connect_grpc
from ssd_cluster.link.limits import MAX_INVALID_FRAMES
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import CommitBatch, Hello, NackCode, Open
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.types import Mode, ProposalKind

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
TOKEN = "the-token-of-this-test"
REQUESTS = [
    request(f"r{i}", range(5 + 30 * i, 25 + 30 * i), temperature=temperature, seed=i, max_tokens=200, ignore_eos=True)
    for i, temperature in enumerate((0.0, 0.9))
]


class Scene:
    """A target in mid-stream on a draft process, and intruders at the same process."""

    def __init__(self, rig: Rig, process: DraftProcess, link: LinkSettings, loop: LinkLoop) -> None:
        self.process = process
        self._rig = rig
        self._intruders: list[Intruder] = []

        def connector(inbox: Inbox) -> Stream:
            return connect_grpc(process.endpoint, inbox, link, loop)

        speculation = {"k": 3, "miss_policy": "always_wait", "fallback": "none", "wait_ms": 500.0}
        breaker = {"window": 1000, "retry_s": 0.05}
        self.engine: TargetEngine = rig.engine(
            Mode.SSD, [connector], speculation=speculation, breaker=breaker, link=link
        )
        connect(self.engine, PATIENCE_S)
        self._clients: list[Client] = submit(self.engine, REQUESTS)
        self.drafted_more()

    def intruder(self, token: str | None = TOKEN) -> Intruder:
        made = Intruder(self.process.endpoint, token)
        self._intruders.append(made)
        return made

    def drafted_more(self) -> None:
        """Step until every request has taken over more drafted tokens."""
        counts = self._accepted()
        self._step(lambda: all(now > then + 3 for now, then in zip(self._accepted(), counts, strict=True)))

    def _accepted(self) -> list[int]:
        return [self.engine._live[one.request_id].stats.num_accepted_draft_tokens for one in REQUESTS]

    def _step(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "the draft is of use"
            self.engine.step()
            time.sleep(0.002)

    def finish(self, plain: list[Client]) -> None:
        drain(self.engine)
        assert self.process.alive
        registry = self.engine.metrics.registry
        assert not registry.get_sample_value("ssd:draft_failures_total", {"reason": "stream"})
        assert_same(self._rig, plain, self._clients, "beside an intruder")
        assert_clean(self.engine)

    def close(self) -> None:
        for intruder in self._intruders:
            intruder.close()
        self.engine.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def rig(folder: Path) -> Rig:
    return Rig.load(make_checkpoint(folder / "target"))


@pytest.fixture(scope="module")
def plain(rig: Rig) -> list[Client]:
    return run(rig.engine(Mode.AR), REQUESTS)


@pytest.fixture(scope="module")
def process(rig: Rig, folder: Path) -> Iterator[DraftProcess]:
    link = LinkSettings(token_file=write_secrets(folder / "token", TOKEN), session_ttl_s=60.0)
    limits = TargetLimits(opens_per_s=0.01, opens_burst=40, sessions=4, tokens=1000)
    settings = draft_settings(perturb(folder / "target", folder / "draft", 0.02), link=link, limits=limits)
    with DraftProcess(settings.model_copy(update={"max_streams": 4})) as started:
        yield started


@pytest.fixture
def scene(rig: Rig, process: DraftProcess, folder: Path) -> Iterator[Scene]:
    link = LinkSettings(token_file=folder / "token", session_ttl_s=60.0)
    with LinkLoop() as loop:
        made = Scene(rig, process, link, loop)
        yield made
        made.close()


def hello_of(rig: Rig, name: str) -> Hello:
    """A Hello that fits the draft."""
    return Hello(name, 1, rig.tokenizer.hash, rig.tokenizer.vocabulary)


def opening(session: int, n_tokens: int = 4) -> Open:
    tokens = tuple(range(5, 5 + n_tokens))
    return Open(session, 1, tokens, ProposalKind.COUPLED, 0.0, 0, 0, 1.0, (), 200, 3, 4)


def test_strangers_are_turned_away(scene: Scene, plain: list[Client]) -> None:
    for token in (None, "a-token-of-nobody"):
        for _ in range(20):
            assert scene.intruder(token).ended() is grpc.StatusCode.UNAUTHENTICATED
    scene.drafted_more()
    scene.finish(plain)


def test_garbage_ends_its_own_stream(scene: Scene, plain: list[Client]) -> None:
    intruder = scene.intruder()
    intruder.send(*[b"\xff\xff\xff"] * MAX_INVALID_FRAMES)
    scene.drafted_more()
    intruder.send(b"\xff\xff\xff")
    assert intruder.ended() is grpc.StatusCode.ABORTED
    scene.finish(plain)


@pytest.mark.parametrize("size", [(4 << 20) + 1, 16 << 20])
def test_an_oversized_frame_ends_its_own_stream(scene: Scene, plain: list[Client], size: int) -> None:
    intruder = scene.intruder()
    intruder.send(bytes(size))
    assert intruder.ended() in (grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
    scene.drafted_more()
    scene.finish(plain)


def test_a_flood_of_openings_and_rows_is_held_to_its_limits(rig: Rig, scene: Scene, plain: list[Client]) -> None:
    intruder = scene.intruder()
    intruder.send(hello_of(rig, "flood"), *(opening(n) for n in range(200)))
    refused = intruder.nacks(196)
    assert {nack.code for nack in refused} == {NackCode.BUSY}
    assert sum(nack.retry_after_ms > 1000 for nack in refused) == 160  # beyond the burst of 40; the others had no room
    for i in range(50):
        texts = [commit_row(session=n, epoch=1, from_len=4 + i, tokens=(9,), rows=65_535, counter=i) for n in range(4)]
        intruder.send(CommitBatch(tuple(texts)))
    scene.drafted_more()
    intruder.close()
    scene.finish(plain)


def test_more_streams_than_there_is_room_for(rig: Rig, scene: Scene, plain: list[Client]) -> None:
    taken = [scene.intruder() for _ in range(3)]
    for n, intruder in enumerate(taken):
        intruder.send(hello_of(rig, f"greedy-{n}"))
        next(intruder.call)
    assert scene.intruder().ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
    scene.drafted_more()
    scene.finish(plain)
