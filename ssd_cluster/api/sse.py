"""Server-sent events: one chunk per verification round and choice.

Order within a choice: role (chat only), text, finish reason. After the last choice: the usage chunk if asked for, then
``[DONE]``. An error after the first byte is an error event, and nothing follows it.
"""

from __future__ import annotations

import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ssd_cluster.api.collect import complete
from ssd_cluster.api.disconnect import ClientGone, unless_disconnected
from ssd_cluster.api.errors import error_of
from ssd_cluster.api.responses import (
    ApiFinish,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    Identity,
    RequestMetrics,
    TextChoice,
    TextChunk,
    Usage,
    api_finish,
)
from ssd_cluster.errors import EngineStopped, SsdClusterError
from ssd_cluster.target.request import Delta, Event, Finished

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"


def encode(data: BaseModel | dict[str, Any]) -> bytes:
    """One event; JSON never holds a raw line end, so one data line is enough."""
    if isinstance(data, BaseModel):
        return b"data: " + data.model_dump_json(exclude_unset=True).encode() + b"\n\n"
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n\n"


class ChunkFormat(ABC):
    """Chunks of one endpoint."""

    def __init__(self, identity: Identity, *, include_usage: bool) -> None:
        self.identity = identity
        self.include_usage = include_usage
        self._filler = {"usage": None} if include_usage else {}

    def opening(self, choice: int) -> list[BaseModel]:
        """Chunks before the first text of a choice."""
        return []

    @abstractmethod
    def text(self, choice: int, text: str) -> BaseModel:
        """New text of a choice."""

    @abstractmethod
    def finish(self, choice: int, reason: ApiFinish, stop_reason: str | int | None) -> BaseModel:
        """The end of a choice."""

    @abstractmethod
    def usage(self, finished: Finished) -> BaseModel:
        """Counts of the whole request, no choices."""


class ChatFormat(ChunkFormat):
    """``chat.completion.chunk``."""

    def _chunk(self, choices: list[ChatChunkChoice], **more: Any) -> ChatChunk:
        fields = {**self.identity.envelope("chat.completion.chunk"), **self._filler, **more}
        return ChatChunk(choices=choices, **fields)

    def opening(self, choice: int) -> list[BaseModel]:
        delta = ChatDelta(role="assistant", content="")
        return [self._chunk([ChatChunkChoice(index=choice, delta=delta, logprobs=None, finish_reason=None)])]

    def text(self, choice: int, text: str) -> BaseModel:
        delta = ChatDelta(content=text)
        return self._chunk([ChatChunkChoice(index=choice, delta=delta, logprobs=None, finish_reason=None)])

    def finish(self, choice: int, reason: ApiFinish, stop_reason: str | int | None) -> BaseModel:
        end = ChatChunkChoice(
            index=choice, delta=ChatDelta(), logprobs=None, finish_reason=reason, stop_reason=stop_reason
        )
        return self._chunk([end])

    def usage(self, finished: Finished) -> BaseModel:
        return self._chunk([], usage=Usage.of(finished), metrics=RequestMetrics.of(finished))


class TextFormat(ChunkFormat):
    """``text_completion`` chunks."""

    def _chunk(self, choices: list[TextChoice], **more: Any) -> TextChunk:
        fields = {**self.identity.envelope("text_completion"), **self._filler, **more}
        return TextChunk(choices=choices, **fields)

    def text(self, choice: int, text: str) -> BaseModel:
        return self._chunk([TextChoice(index=choice, text=text, logprobs=None, finish_reason=None)])

    def finish(self, choice: int, reason: ApiFinish, stop_reason: str | int | None) -> BaseModel:
        end = TextChoice(index=choice, text="", logprobs=None, finish_reason=reason, stop_reason=stop_reason)
        return self._chunk([end])

    def usage(self, finished: Finished) -> BaseModel:
        return self._chunk([], usage=Usage.of(finished), metrics=RequestMetrics.of(finished))


async def stream_events(events: AsyncGenerator[Event, None], form: ChunkFormat, n: int) -> AsyncGenerator[bytes, None]:
    """Encoded events of one request with ``n`` choices; never raises, an error is the last event instead."""
    try:
        async with contextlib.aclosing(_chunks(events, form, n)) as chunks:
            async for data in chunks:
                yield encode(data)
        yield DONE
    except Exception as error:
        if not isinstance(error, SsdClusterError):
            log.exception("stream failed id=%s", form.identity.id)
        yield encode(error_of(error)[1])


async def _chunks(events: AsyncIterator[Event], form: ChunkFormat, n: int) -> AsyncGenerator[BaseModel, None]:
    opened: set[int] = set()
    ended: set[int] = set()
    finished: Finished | None = None
    async for event in events:
        if isinstance(event, Finished):
            finished = event
            continue
        for chunk in _of_delta(event, form, opened, ended):
            yield chunk
    done = complete(finished)
    if len(ended) < n:
        raise EngineStopped("the engine stopped before the answer was complete")
    if form.include_usage:
        yield form.usage(done)


def _of_delta(delta: Delta, form: ChunkFormat, opened: set[int], ended: set[int]) -> list[BaseModel]:
    chunks: list[BaseModel] = []
    reason = api_finish(delta.finish_reason) if delta.finish_reason is not None else None
    if delta.choice not in opened:
        opened.add(delta.choice)
        chunks += form.opening(delta.choice)
    if delta.text:
        chunks.append(form.text(delta.choice, delta.text))
    if reason is not None:
        ended.add(delta.choice)
        chunks.append(form.finish(delta.choice, reason, delta.stop_reason))
    return chunks


class EventStream(Response):
    """Streams encoded events; a disconnect or a cancelled call closes the generator, which aborts the request."""

    media_type = "text/event-stream"

    def __init__(self, encoded: AsyncGenerator[bytes, None], source: AsyncGenerator[Event, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._encoded = encoded
        self._source = source  # closed as well: a generator that was never started does not close what it reads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_disconnected(receive, self._send(send))
        except (ClientGone, OSError):
            log.info("client disconnected path=%s", scope.get("path"))
        finally:
            await self._encoded.aclose()
            await self._source.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._encoded:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
