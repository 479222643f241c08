"""An engine that plays a script of events, and a client over the app in front of it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from ssd_cluster.api.app import create_app
from ssd_cluster.api.client import LocalEngineClient, ServedModel
from ssd_cluster.errors import InvalidRequest
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest, Sink, SpeculationStats
from ssd_cluster.types import FinishReason

DEADLINE_S = 20.0
Step = Event | threading.Event
Script = Callable[[GenerationRequest], Iterable[Step]]

# What ``finished`` says about speculation, as clients see it.
SPECULATION = {
    "mean_acceptance_length": 3.5,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 0, 1, 1, 0, 1],
    "num_spec_steps": 4,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 20,
    "num_spec_tokens": 5,
    "cache_hits": 3,
    "cache_misses": 1,
    "fallbacks": 1,
}


class CharTokenizer:
    """One id per character; no model, no merges."""

    def encode_prompt(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def apply_chat_template(self, messages: list[dict[str, Any]]) -> list[int]:
        if messages[-1]["role"] == "assistant":
            raise InvalidRequest("the last message must come from the user")
        return [ord(c) for m in messages for c in f"<{m['role']}>{m['content']}"]


class ScriptedEngine:
    """Plays ``script(request)`` on a thread of its own; a ``threading.Event`` in it is waited for."""

    def __init__(self, script: Script, *, refuse: Exception | None = None) -> None:
        self.script = script
        self.refuse = refuse
        self.requests: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.abort_seen = threading.Event()
        self.is_healthy = True

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        threading.Thread(target=self._play, args=(request, sink), daemon=True).start()

    def _play(self, request: GenerationRequest, sink: Sink) -> None:
        for step in self.script(request):
            if isinstance(step, threading.Event):
                step.wait(DEADLINE_S)
            else:
                sink(step)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self.abort_seen.set()

    def healthy(self) -> bool:
        return self.is_healthy


def delta(
    request: GenerationRequest,
    text: str,
    choice: int = 0,
    finish: FinishReason | None = None,
    stop_reason: str | int | None = None,
) -> Delta:
    return Delta(request.request_id, choice, tuple(range(max(1, len(text)))), text, finish, stop_reason)


def finished(request: GenerationRequest, completion_tokens: int = 0, error: str | None = None) -> Finished:
    stats = SpeculationStats(
        num_spec_tokens=5,
        num_spec_steps=4,
        num_draft_tokens=20,
        num_accepted_draft_tokens=10,
        acceptance_histogram=[1, 0, 1, 1, 0, 1],
        cache_hits=3,
        cache_misses=1,
        fallbacks=1,
    )
    return Finished(request.request_id, len(request.prompt_token_ids), completion_tokens, 3, stats, 0.1, 0.2, error)


def say(*bursts: str, finish: FinishReason = FinishReason.STOP) -> Script:
    """Every choice says the bursts in turn; the last burst carries the finish reason."""

    def script(request: GenerationRequest) -> Iterable[Step]:
        for i, burst in enumerate(bursts):
            last = finish if i == len(bursts) - 1 else None
            for choice in range(request.params.n):
                yield delta(request, burst, choice, last)
        yield finished(request, request.params.n * sum(max(1, len(b)) for b in bursts))

    return script


def interleaved(request: GenerationRequest) -> Iterable[Step]:
    """Three choices whose deltas come mixed."""
    yield delta(request, "b1", 1)
    yield delta(request, "a1", 0)
    yield delta(request, "b2", 1, FinishReason.LENGTH)
    yield delta(request, "c", 2, FinishReason.STOP)
    yield delta(request, "a2", 0, FinishReason.STOP)
    yield finished(request, 9)


def broken(request: GenerationRequest) -> Iterable[Step]:
    """One delta, then the engine fails."""
    yield delta(request, "a")
    yield finished(request, 1, error="device lost")


def make_app(engine: ScriptedEngine, **settings: Any) -> FastAPI:
    model = ServedModel(
        name="tiny",
        tokenizer=CharTokenizer(),
        max_context=settings.get("max_context", 200),
        vocabulary=0x110000,
        default_max_tokens=settings.get("default_max_tokens", 100),
        fingerprint="fp",
        replica="r0",
        registry=settings.get("registry") or CollectorRegistry(),
    )
    client = LocalEngineClient(engine, health_check_s=settings.get("health_check_s", 5.0))
    return create_app(client, model, settings.get("keys"))


def post(app: FastAPI, path: str, body: Any) -> httpx.Response:
    """One request over ASGI; a streamed response is read to its end. ``body``: JSON, or bytes as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return run(_request(app, "POST", path, content=content, headers={"content-type": "application/json"}))


def get(app: FastAPI, path: str) -> httpx.Response:
    return run(_request(app, "GET", path))


async def _request(app: FastAPI, method: str, path: str, **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, **more)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine with a deadline."""

    async def bounded() -> Any:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())
