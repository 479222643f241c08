"""Peers that die, fall silent, do not read, or send what is no message."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from support.links import block, commit_row, hello, welcome

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import LinkClosed
from ssd_cluster.link.codec import encode
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.grpc_transport import METHOD, PATH, SERVICE, accept
from ssd_cluster.link.limits import MAX_INVALID_FRAMES
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import BlockBatch, CommitBatch, Open, Ping, Pong, StreamClosed
from ssd_cluster.link.stream import Inbox, Received
from ssd_cluster.types import ProposalKind

PATIENCE_S = 30.0
SHORT = LinkSettings(ping_interval_s=0.1, session_ttl_s=0.5)


def take(inbox: Inbox) -> Received:
    received = inbox.receive(PATIENCE_S)
    assert received is not None, "nothing arrived"
    return received


def take_end(inbox: Inbox) -> StreamClosed:
    while True:
        _, message = take(inbox)
        if isinstance(message, StreamClosed):
            return message


@contextmanager
def draft_process(port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A draft in another process, and its endpoint."""
    tests = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("echo_draft.py")), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        assert endpoint, "the draft process did not start"
        yield process, endpoint
    finally:
        process.stdin.close()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE_S)
        process.stdout.close()


class RawTarget:
    """A gRPC client that sends whatever bytes it is told to."""

    def __init__(self, endpoint: str) -> None:
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(endpoint, options=options)
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.call = self._channel.stream_stream(PATH)(iter(self._frames.get, None))

    def send(self, *frames: bytes) -> None:
        for frame in frames:
            self._frames.put(frame)

    def close(self) -> None:
        self._frames.put(None)
        self.call.cancel()
        self._channel.close()


@pytest.fixture
def raw(listener: Listener) -> Iterator[RawTarget]:
    client = RawTarget(listener.endpoint)
    yield client
    client.close()


@contextmanager
def raw_draft(loop: LinkLoop, behave: Callable[[grpc.aio.ServicerContext], object]) -> Iterator[str]:  # type: ignore[type-arg]
    """A gRPC server that does what it is told to with a stream; yields its endpoint."""

    async def start() -> tuple[grpc.aio.Server, int]:
        async def handle(_: object, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
            await accept(context)
            await behave(context)  # type: ignore[misc]

        server = grpc.aio.server()
        methods = {METHOD: grpc.stream_stream_rpc_method_handler(handle)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = loop.call(start(), PATIENCE_S)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        loop.call(server.stop(0), PATIENCE_S)


def test_a_killed_draft_ends_the_stream_and_its_successor_is_used(loop: LinkLoop, target_inbox: Inbox) -> None:
    settings = LinkSettings()
    with draft_process() as (process, endpoint):
        stream = connect(endpoint, target_inbox, settings, loop)
        stream.send(hello())
        assert take(target_inbox) == (stream, welcome())
        process.send_signal(signal.SIGKILL)
        source, message = take(target_inbox)
        assert source is stream
        assert isinstance(message, StreamClosed)
        assert stream.closed
        with pytest.raises(LinkClosed):
            stream.send(CommitBatch((commit_row(),)))
    with draft_process(int(endpoint.rpartition(":")[2])) as (_, same):
        assert same == endpoint
        again = connect(endpoint, target_inbox, settings, loop)
        again.send(CommitBatch((commit_row(),)))
        assert take(target_inbox) == (again, BlockBatch((block(),)))
        again.close()


def test_a_stopped_draft_is_silent_and_the_stream_ends(loop: LinkLoop, target_inbox: Inbox) -> None:
    with draft_process() as (process, endpoint):
        stream = connect(endpoint, target_inbox, SHORT, loop)
        stream.send(hello())
        assert take(target_inbox) == (stream, welcome())
        process.send_signal(signal.SIGSTOP)
        try:
            assert "nothing heard" in take_end(target_inbox).reason
        finally:
            process.send_signal(signal.SIGCONT)


def test_pings_keep_an_idle_stream_alive(loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox) -> None:
    settings = LinkSettings(ping_interval_s=0.05, session_ttl_s=0.3)
    listener = Listener("127.0.0.1", 0, draft_inbox, settings, loop)
    stream = connect(listener.endpoint, target_inbox, settings, loop)
    pongs = 20  # at 0.05 s each, three times the silence that ends a stream
    deadline = time.monotonic() + PATIENCE_S
    while stream.bytes_received < pongs * len(encode(Pong(0))) and time.monotonic() < deadline and not stream.closed:
        time.sleep(0.02)
    assert stream.bytes_received >= pongs * len(encode(Pong(0)))
    assert not stream.closed
    assert target_inbox.drain() == draft_inbox.drain() == []
    listener.close()


def test_a_target_learns_the_patience_of_its_draft(loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox) -> None:
    listener = Listener("127.0.0.1", 0, draft_inbox, SHORT, loop)
    stream = connect(listener.endpoint, target_inbox, LinkSettings(ping_interval_s=0.2), loop)
    stream.send(hello())
    draft, _ = take(draft_inbox)
    draft.send(welcome(session_ttl_s=0.04))
    take(target_inbox)
    before = stream.bytes_sent
    deadline = time.monotonic() + PATIENCE_S
    while stream.bytes_sent == before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert stream.bytes_sent > before
    assert not draft.closed
    listener.close()


def test_a_silent_target_is_let_go(loop: LinkLoop, draft_inbox: Inbox) -> None:
    listener = Listener("127.0.0.1", 0, draft_inbox, SHORT, loop)
    client = RawTarget(listener.endpoint)
    client.send(encode(hello()))
    stream, _ = take(draft_inbox)
    assert "nothing heard for 0.5 s" in take_end(draft_inbox).reason
    assert stream.closed
    with pytest.raises(grpc.RpcError) as caught:
        next(client.call)
    assert "nothing heard" in caught.value.details()
    client.close()
    listener.close()


def test_a_silent_draft_is_let_go(loop: LinkLoop, target_inbox: Inbox) -> None:
    async def sleep(context: object) -> None:
        await asyncio.sleep(PATIENCE_S)

    with raw_draft(loop, sleep) as endpoint:
        connect(endpoint, target_inbox, SHORT, loop)
        assert "nothing heard for 0.5 s" in take_end(target_inbox).reason


def test_garbage_is_dropped_and_counted_and_valid_frames_still_pass(raw: RawTarget, draft_inbox: Inbox) -> None:
    raw.send(b"\xff\xff\xff", encode(hello()), b"", b"\x0a\x05hello", encode(CommitBatch((commit_row(),))))
    stream, first = take(draft_inbox)
    assert first == hello()
    assert take(draft_inbox) == (stream, CommitBatch((commit_row(),)))
    assert stream.frames_dropped == 3
    assert not stream.closed


def test_repeated_garbage_ends_the_stream(raw: RawTarget, draft_inbox: Inbox) -> None:
    raw.send(encode(hello()), *[b"\xff\xff\xff"] * (MAX_INVALID_FRAMES + 1))
    stream, _ = take(draft_inbox)
    assert "17 invalid frames" in take_end(draft_inbox).reason
    assert stream.closed
    with pytest.raises(grpc.RpcError) as caught:
        next(raw.call)
    assert caught.value.code() is grpc.StatusCode.ABORTED


def test_garbage_from_a_draft_ends_the_targets_stream(loop: LinkLoop, target_inbox: Inbox) -> None:
    async def babble(context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        for _ in range(MAX_INVALID_FRAMES + 1):
            await context.write(b"\xff\xff\xff")
        await asyncio.sleep(PATIENCE_S)

    with raw_draft(loop, babble) as endpoint:
        stream = connect(endpoint, target_inbox, LinkSettings(), loop)
        assert "17 invalid frames" in take_end(target_inbox).reason
        assert stream.frames_dropped == MAX_INVALID_FRAMES + 1


@pytest.mark.parametrize("excess", [1, 5 * 1024 * 1024])  # the larger one is ended by gRPC, without a word
def test_an_oversize_frame_ends_its_stream_and_no_other(
    raw: RawTarget, listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox, excess: int
) -> None:
    raw.send(encode(hello()))
    stream, _ = take(draft_inbox)
    most = LinkSettings().frame_bytes
    raw.send(bytes(most + excess))
    reason = take_end(draft_inbox).reason
    assert excess > most or reason == f"the peer sent a frame of {most + excess} bytes, more than {most}"
    assert stream.frames_dropped == (excess <= most)
    assert stream.closed
    with pytest.raises(grpc.RpcError):
        next(raw.call)
    other = connect(listener.endpoint, target_inbox, LinkSettings(), loop)
    other.send(hello())
    assert take(draft_inbox)[1] == hello()


def test_an_oversize_frame_from_a_draft_ends_the_targets_stream(loop: LinkLoop, target_inbox: Inbox) -> None:
    async def shout(context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        await context.write(bytes(10_000))
        await asyncio.sleep(PATIENCE_S)

    with raw_draft(loop, shout) as endpoint:
        connect(endpoint, target_inbox, LinkSettings(frame_bytes=4096), loop)
        assert "resource_exhausted" in take_end(target_inbox).reason


def test_a_peer_that_does_not_read_ends_the_stream_when_the_queue_is_full(loop: LinkLoop, target_inbox: Inbox) -> None:
    async def sleep(context: object) -> None:
        await asyncio.sleep(PATIENCE_S)

    large = Open(1, 1, (1,) * 50_000, ProposalKind.COUPLED, 0.0, 0, 0, 1.0, (), 60_000, 5, 16)
    with raw_draft(loop, sleep) as endpoint:
        stream = connect(endpoint, target_inbox, LinkSettings(send_queue=8), loop)

        def fill() -> None:
            for _ in range(1000):
                stream.send(large)

        with pytest.raises(LinkClosed, match="does not read: 8 frames unsent"):
            fill()
        assert stream.closed
        source, message = take(target_inbox)
        assert source is stream
        assert isinstance(message, StreamClosed)
        assert "does not read" in message.reason
        assert target_inbox.receive(0.05) is None


def test_closing_while_the_peer_does_not_read_still_ends(loop: LinkLoop, target_inbox: Inbox) -> None:
    async def sleep(context: object) -> None:
        await asyncio.sleep(PATIENCE_S)

    large = Open(1, 1, (1,) * 100_000, ProposalKind.COUPLED, 0.0, 0, 0, 1.0, (), 60_000, 5, 16)
    with raw_draft(loop, sleep) as endpoint:
        stream = connect(endpoint, target_inbox, LinkSettings(), loop)
        for _ in range(20):
            stream.send(large)
        stream.close()
        loop.call(stream.shutdown("again"), PATIENCE_S)  # type: ignore[attr-defined]
    assert target_inbox.drain() == []


def test_a_vanished_target_ends_the_drafts_stream(raw: RawTarget, draft_inbox: Inbox) -> None:
    raw.send(encode(hello()), encode(Ping(0)))
    stream, _ = take(draft_inbox)
    raw.call.cancel()
    take_end(draft_inbox)
    assert stream.closed
    assert draft_inbox.receive(0.05) is None
