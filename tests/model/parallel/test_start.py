"""Ranks that do not come up, or are not ours: refused with a reason, and nothing is left."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.ranks import ThreadRanks, alive, load_ranks
from support.tiny import make_checkpoint, perturb

from ssd_cluster.config import ModelSettings
from ssd_cluster.errors import RankError, StartupError
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan, TreeSpan
from ssd_cluster.model.parallel.channel import Channel
from ssd_cluster.model.parallel.launcher import LocalRanks, RankOrder
from ssd_cluster.model.parallel.wire import Hello, Keep, Message, Ping, Ready, Stop, Welcome, decode, encode


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "model")


def test_a_rank_with_another_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    other = ModelSettings(path=str(perturb(folder, tmp_path / "other")), kv_tokens=1024)
    with pytest.raises(StartupError, match="rank 1 has another checkpoint"):
        load_ranks(folder, 2, ThreadRanks(model=other))


def test_a_rank_without_the_checkpoint_says_so(folder: Path, tmp_path: Path) -> None:
    missing = ModelSettings(path=str(tmp_path / "nothing"))
    with pytest.raises(StartupError, match=r"rank 1 did not start: no model .*nothing"):
        load_ranks(folder, 2, ThreadRanks(model=missing))


def test_a_rank_that_cannot_load_its_part_says_so(folder: Path) -> None:
    model = ModelSettings(path=str(folder), kv_tokens=1024, max_context=100_000)
    with pytest.raises(StartupError, match="rank 1 did not start: max_context 100000"):
        load_ranks(folder, 2, ThreadRanks(model=model))


class Imposter(ThreadRanks):
    """Connects before the ranks do: once with a wrong token, once with garbage; and keeps both connections."""

    def start(self, orders: Sequence[RankOrder]) -> None:
        self.channels = []
        for _ in range(2):
            self.channels.append(Channel(socket.create_connection((orders[0].host, orders[0].port), timeout=5)))
        self.channels[0].send(Hello(1, "guessed"), 5.0)
        self.channels[1]._socket.sendall(b"\x04\0\0\0\xc1\xc1\xc1\xc1")
        super().start(orders)


def test_strangers_are_turned_away(folder: Path) -> None:
    ranks = Imposter()
    runner = load_ranks(folder, 2, ranks)
    for channel in ranks.channels:
        with pytest.raises(RankError):
            channel.receive(5.0)
    assert len(runner.forward(ForwardBatch([CausalSpan([1, 2, 3], 0, [0])]))) == 3
    runner.close()


class BadInterpreter(LocalRanks):
    """Children that end at once, as after a failed import."""

    def start(self, orders: Sequence[RankOrder]) -> None:
        for _ in orders:
            self._children.append(
                subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], stdin=subprocess.PIPE, text=True)
            )


def test_a_child_that_ends_before_it_connects_is_noticed(folder: Path) -> None:
    ranks = BadInterpreter()
    with pytest.raises(StartupError, match="rank 1 has ended with code 7 before it connected"):
        load_ranks(folder, 2, ranks)
    assert not alive(ranks.pids)


MESSAGES: list[Message] = [
    Hello(1, "token"),
    Welcome(4711),
    Ready("abc"),
    Keep([3, 4], 7, [0, 2]),
    Ping(),
    Stop(),
    ForwardBatch(),
    ForwardBatch(
        [
            CausalSpan([1, 2], 5, [7, 8], 1),
            TreeSpan([3, 4], [9], [5, 6], [0, 1], [1, 0]),
            MaskedSpan([5], 3, [1], [-1, 0]),
        ]
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_survive_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x00", b"\x91\x63", b"\x92\x00\x93\x09\x01\x02", b"\x91\x01", b"\x90"]
)
def test_other_frames_are_refused(frame: bytes) -> None:
    with pytest.raises(RankError, match="something else than a message"):
        decode(frame)


def test_a_channel_gives_up_at_its_deadline_and_on_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Channel(socket.create_connection(server.getsockname()))
        accepted, _ = server.accept()
        with pytest.raises(RankError, match=r"said nothing for 0\.3 s"):
            client.receive(0.3)
        with pytest.raises(RankError, match="enough"):
            client.receive(60.0, lambda: "enough")
        accepted.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(RankError, match="announced a message of 4294967295 bytes"):
            client.receive(5.0)
        accepted.close()
        with pytest.raises(RankError):
            client.receive(5.0)
        client.close()
        client.close()
