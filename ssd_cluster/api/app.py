"""The HTTP application of one replica."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastapi
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from ssd_cluster import __version__
from ssd_cluster.api import errors, exposition
from ssd_cluster.api.client import EngineClient, ServedModel
from ssd_cluster.api.collect import chat_completion, collect, text_completion
from ssd_cluster.api.disconnect import ClientGone, unless_disconnected
from ssd_cluster.api.keys import ApiKeys, KeyGate
from ssd_cluster.api.responses import Identity, ModelCard, ModelList
from ssd_cluster.api.schemas import ChatRequest, CompletionRequest, GenerationOptions
from ssd_cluster.api.sse import ChatFormat, EventStream, TextFormat, stream_events
from ssd_cluster.api.translate import chat_request, completion_request
from ssd_cluster.errors import EngineStopped, ModelNotFound
from ssd_cluster.target.request import Delta, Event, GenerationRequest

CLIENT_CLOSED_REQUEST = 499


def create_app(
    client: EngineClient,
    model: ServedModel,
    keys: ApiKeys | None = None,
    cluster: Callable[[], dict[str, Any]] | None = None,
) -> FastAPI:
    """The endpoints of one model: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics.

    ``keys``: all but /health ask for one of them; None: nothing does. ``cluster``: what /v1/cluster answers; may block
    with a deadline. Without it there is no such endpoint.
    """
    endpoints = _Endpoints(client, model)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        endpoints.close()

    app = FastAPI(title="ssd-cluster", version=__version__, lifespan=lifespan)
    errors.install(app)
    if keys is not None:
        app.add_middleware(KeyGate, keys=keys)
    app.include_router(_generation_routes(endpoints))
    app.include_router(_service_routes(client, model))
    if cluster is not None:
        app.include_router(_cluster_routes(cluster))
    return app


class _Endpoints:
    """Generation shared by both endpoints; tokenizing happens on one thread of its own, never on the event loop."""

    def __init__(self, client: EngineClient, model: ServedModel) -> None:
        self.client = client
        self.model = model
        self._tokenizing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")

    def close(self) -> None:
        self._tokenizing.shutdown(wait=False, cancel_futures=True)

    async def prepared(
        self, body: Any, translate: Callable[[Any, ServedModel], GenerationRequest]
    ) -> tuple[GenerationRequest, Identity]:
        loop = asyncio.get_running_loop()
        request = await loop.run_in_executor(self._tokenizing, translate, body, self.model)
        return request, Identity(request.request_id, self.model.name, self.model.fingerprint)


def _generation_routes(endpoints: _Endpoints) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", response_model=None)
    async def chat(body: ChatRequest, http: Request) -> Response:
        """Chat completion."""
        request, identity = await endpoints.prepared(body, chat_request)
        form = ChatFormat(identity, include_usage=body.include_usage)
        return await _respond(endpoints, http, body, request, form, lambda outcome: chat_completion(identity, outcome))

    @router.post("/v1/completions", response_model=None)
    async def completions(body: CompletionRequest, http: Request) -> Response:
        """Plain completion of a prompt."""
        request, identity = await endpoints.prepared(body, completion_request)
        form = TextFormat(identity, include_usage=body.include_usage)
        return await _respond(endpoints, http, body, request, form, lambda outcome: text_completion(identity, outcome))

    return router


async def _respond(
    endpoints: _Endpoints,
    http: Request,
    body: GenerationOptions,
    request: GenerationRequest,
    form: ChatFormat | TextFormat,
    whole: Callable[[Any], Any],
) -> Response:
    n = request.params.n
    events = endpoints.client.generate(request)
    try:
        if body.stream:
            started = await unless_disconnected(http.receive, _started(events))
            return EventStream(stream_events(started, form, n), events)
        async with contextlib.aclosing(events):
            outcome = await unless_disconnected(http.receive, collect(events, n))
        return Response(whole(outcome).model_dump_json(exclude_unset=True), media_type="application/json")
    except ClientGone:
        await events.aclose()
        return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _started(events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    """Wait for the first event, so that a failure before it still has its own HTTP status."""
    try:
        first = await anext(events)
        if not isinstance(first, Delta) and first.error is not None:
            raise EngineStopped(first.error)
    except BaseException:
        await events.aclose()
        raise
    return _resumed(first, events)


async def _resumed(first: Event, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
    async with contextlib.aclosing(events):
        yield first
        async for event in events:
            yield event


def _service_routes(client: EngineClient, model: ServedModel) -> APIRouter:
    router = APIRouter()
    card = ModelCard(id=model.name, created=int(time.time()), max_model_len=model.max_context)

    @router.get("/v1/models")
    async def models() -> ModelList:
        """The models served here."""
        return ModelList(data=[card])

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> ModelCard:
        """One model by its id."""
        if name != model.name:
            raise ModelNotFound(f"model {name!r} is not served here; {model.name!r} is", param="model")
        return card

    @router.get("/health", response_model=None)
    async def health() -> Response:
        """200 while the engine makes progress or has nothing to do, 503 otherwise; drafts do not count."""
        if client.healthy():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "engine makes no progress"}, status_code=503)

    @router.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """Prometheus text."""
        text = exposition.prometheus_text(model.registry, model_name=model.name, replica=model.replica)
        return fastapi.Response(text, media_type=exposition.CONTENT_TYPE)

    return router


def _cluster_routes(cluster: Callable[[], dict[str, Any]]) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/cluster", response_model=None)
    def view() -> Response:  # no coroutine: FastAPI runs it on a thread
        """Targets and drafts of the cluster, and which draft holds whose sessions."""
        return JSONResponse(cluster())

    return router
