"""A draft replica without Ray: engine thread, gRPC loop thread, listener."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import AsyncGenerator, Mapping
from typing import Any, TypedDict

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.engine import load_draft
from ssd_cluster.draft.leases import LeaseBook
from ssd_cluster.errors import EngineStopped
from ssd_cluster.link.grpc_backend import Listener, check_listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import DraftMetrics
from ssd_cluster.model.device import pin_thread

STOP_TIMEOUT_S = 5.0


class DraftEndpoint(TypedDict):
    """What a draft replica says about itself.

    ``replica``: the name that Serve gave it; ``endpoint``: host:port of its gRPC listener; ``incarnation``: u64 of its
    engine; ``pid`` of its process.
    """

    replica: str
    endpoint: str
    incarnation: int
    model_hash: str
    tokenizer_hash: str
    pid: int


class DraftService:
    """Runs a draft behind a gRPC listener; blocking, so not for an event loop's thread."""

    def __init__(self, settings: DraftSettings, node_address: str = "127.0.0.1", replica: str | None = None) -> None:
        """Load the model, listen, start the engine.

        Args:
            settings: of the draft.
            node_address: where targets find this machine, if the draft listens on all of its addresses.
            replica: the name that Serve gave it; sessions are then only opened under a lease. None: without leases.

        Raises:
            CheckpointError, ConfigError, LinkError: the model cannot be loaded or the port not be used.
        """
        check_listener(settings.host, settings.link)
        self._node_address = node_address
        if settings.model.cores is not None:
            pin_thread(settings.model.cores)  # the threads started below inherit it
        self.metrics = DraftMetrics()
        self._replica = replica or ""
        self._leases = LeaseBook(settings.link.session_ttl_s)
        inbox = Inbox()
        self._engine = load_draft(settings, inbox, self.metrics, self._leases if replica is not None else None)
        self._loop = LinkLoop("draft-link")
        self._loop.start()
        try:
            self._listener = Listener(
                settings.host,
                settings.port,
                inbox,
                settings.link,
                self._loop,
                max_streams=settings.max_streams,
                refused=lambda reason: self.metrics.refused_streams.labels(reason).inc(),
            )
        except BaseException:
            self._loop.close()
            raise
        self._engine.start()

    def endpoint(self) -> DraftEndpoint:
        """Where and what this draft is."""
        welcome = self._engine.welcome
        return DraftEndpoint(
            replica=self._replica,
            endpoint=self._listener.endpoint_at(self._node_address),
            incarnation=welcome.incarnation,
            model_hash=welcome.model_hash,
            tokenizer_hash=welcome.tokenizer_hash,
            pid=os.getpid(),
        )

    async def lease(self, session: int) -> AsyncGenerator[dict[str, Any], None]:
        """A lease for a session, for as long as this generator lives.

        First comes this draft's endpoint; then, perhaps, ``revoked`` with the reason why the session should go
        elsewhere; ``ended`` when the target's stream has gone or no session was opened.
        """
        loop = asyncio.get_running_loop()
        said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        def say(what: str, why: str) -> None:
            loop.call_soon_threadsafe(said.put_nowait, {what: why})

        held = self._leases.grant(session, lambda why: say("revoked", why), lambda why: say("ended", why))
        try:
            yield dict(self.endpoint())
            item: dict[str, Any] = {}
            while "ended" not in item:
                item = await said.get()
                yield item
        finally:
            self._leases.give_back(held)

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Share rows and sessions among targets by these weights from now on."""
        self._engine.reweigh(weights)

    def drain(self) -> None:
        """Send sessions elsewhere; returns at once, and for any thread."""
        self._engine.drain()

    def status(self) -> dict[str, Any]:
        """What is open, free and asked for, for operators, for placing sessions and for tests."""
        state = dataclasses.asdict(self._engine.snapshot())
        return {"kind": "draft", "pid": os.getpid(), **dict(self.endpoint()), **state}

    def check(self) -> None:
        """Say whether the engine lives.

        Raises:
            EngineStopped: it has failed or makes no progress.
        """
        if not self._engine.healthy():
            raise EngineStopped("the draft engine has failed or makes no progress")

    def close(self) -> None:
        """Send targets elsewhere, end their streams, stop the engine, release the port; safe to call twice."""
        self._engine.drain()
        self._engine.stop(STOP_TIMEOUT_S)
        self._listener.close()
        self._loop.close()
