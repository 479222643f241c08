"""The loop thread: deadlines, errors instead of hangs, and nothing left when it is closed."""

from __future__ import annotations

import asyncio
import threading

import pytest
from support.links import hello

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import LinkClosed, LinkError
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import StreamClosed
from ssd_cluster.link.stream import Inbox


def test_start_and_close_may_be_repeated() -> None:
    loop = LinkLoop()
    for _ in range(2):
        loop.start()
        loop.start()
        assert loop.running
        loop.close()
        loop.close()
        assert not loop.running


def test_a_loop_that_does_not_run_says_so() -> None:
    loop = LinkLoop()

    async def nothing() -> None: ...

    with pytest.raises(LinkError, match="not running"):
        loop.call(nothing(), 1)
    with pytest.raises(LinkClosed):
        loop.post(print)
    with pytest.raises(LinkError, match="not running"):
        connect("127.0.0.1:1", Inbox(), LinkSettings(), loop)


def test_a_call_has_a_deadline_and_is_cancelled_after_it(loop: LinkLoop) -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(LinkError, match=r"within 0\.01 s"):
        loop.call(forever(), 0.01)
    assert cancelled.wait(10)


def test_a_blocking_call_from_the_loops_own_thread_is_an_error(loop: LinkLoop) -> None:
    async def inner() -> None: ...

    async def outer() -> str:
        with pytest.raises(LinkError, match="own thread"):
            loop.call(inner(), 1)
        with pytest.raises(LinkError, match="own thread"):
            loop.close()
        return "survived"

    assert loop.call(outer(), 10) == "survived"


def test_closing_the_loop_ends_streams_and_listeners_of_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    up, down = Inbox(), Inbox()
    drafts, targets = LinkLoop("drafts"), LinkLoop("targets")
    drafts.start()
    targets.start()
    listener = Listener("127.0.0.1", 0, down, LinkSettings(), drafts)
    streams = [connect(listener.endpoint, up, LinkSettings(), targets) for _ in range(3)]
    for stream in streams:
        stream.send(hello())
    ends = [down.receive(10) for _ in streams]
    drafts.close()
    closed = [up.receive(10) for _ in streams]
    assert all(item is not None and isinstance(item[1], StreamClosed) for item in closed)
    targets.close()
    assert all(stream.closed for stream in streams)
    assert all(item is not None and item[0].closed for item in ends)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_tasks_of_the_loop_do_not_outlive_it() -> None:
    loop = LinkLoop()
    loop.start()
    ended = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def begin() -> None:
        loop.spawn(wait())
        await asyncio.sleep(0)

    loop.call(begin(), 10)
    loop.close()
    assert ended.is_set()
