"""A client that goes away, at every moment, has its request aborted once; nothing else is."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from support.scripted_engine import ScriptedEngine, Step, delta, finished, make_app, run

from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import FinishReason


class Connection:
    """One HTTP request driven message by message; ``gone`` makes the client disconnect."""

    def __init__(self, engine: ScriptedEngine, stream: bool, *, broken_pipe: bool = False) -> None:
        self.gone = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        self.changed = asyncio.Event()
        self._broken_pipe = broken_pipe
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
        self._body: bytes | None = json.dumps(body).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"content-type", b"application/json")],
        }
        self.task = asyncio.ensure_future(make_app(engine)(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._broken_pipe and message["type"] == "http.response.body":
            raise OSError("client gone")
        self.sent.append(message)
        self.changed.set()

    async def until_sent(self, text: bytes) -> None:
        while not any(text in m.get("body", b"") for m in self.sent):
            self.changed.clear()
            await self.changed.wait()

    async def until_submitted(self, engine: ScriptedEngine) -> None:
        while not engine.requests:
            await asyncio.sleep(0)


def hanging_after(*texts: str) -> ScriptedEngine:
    def script(request: GenerationRequest) -> Iterable[Step]:
        yield from (delta(request, text) for text in texts)
        yield threading.Event()

    return ScriptedEngine(script)


async def aborted_once(engine: ScriptedEngine) -> None:
    await asyncio.to_thread(engine.abort_seen.wait, 20)
    assert engine.aborted == [engine.requests[0].request_id]


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_before_the_first_token(stream: bool, cancelled: bool) -> None:
    async def scenario() -> None:
        engine = hanging_after()
        connection = Connection(engine, stream)
        await connection.until_submitted(engine)
        if cancelled:
            connection.task.cancel()
        else:
            connection.gone.set()
        await asyncio.wait({connection.task})
        await aborted_once(engine)

    run(scenario())


@pytest.mark.parametrize("cancelled", [False, True])
def test_between_two_chunks(cancelled: bool) -> None:
    async def scenario() -> None:
        engine = hanging_after("abc", "def")
        connection = Connection(engine, stream=True)
        await connection.until_sent(b"def")
        assert engine.aborted == []
        if cancelled:
            connection.task.cancel()
        else:
            connection.gone.set()
        await asyncio.wait({connection.task})
        await aborted_once(engine)

    run(scenario())


def test_a_broken_pipe_while_sending() -> None:
    async def scenario() -> None:
        engine = hanging_after("abc")
        connection = Connection(engine, stream=True, broken_pipe=True)
        await connection.task
        await aborted_once(engine)

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_after_the_end_nothing_is_aborted(stream: bool) -> None:
    def script(request: GenerationRequest) -> Iterable[Step]:
        yield delta(request, "all", finish=FinishReason.STOP)
        yield finished(request, 3)

    async def scenario() -> None:
        engine = ScriptedEngine(script)
        connection = Connection(engine, stream)
        await connection.task
        connection.gone.set()
        assert b"all" in b"".join(m.get("body", b"") for m in connection.sent)
        assert engine.aborted == []

    run(scenario())
