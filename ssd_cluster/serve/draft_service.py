"""A draft replica without Ray: engine thread, gRPC loop thread, listener."""

from __future__ import annotations

import os
from typing import TypedDict

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.engine import load_draft
from ssd_cluster.errors import EngineStopped
from ssd_cluster.link.grpc_backend import Listener, check_listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import DraftMetrics
from ssd_cluster.model.device import pin_thread

STOP_TIMEOUT_S = 5.0


class DraftEndpoint(TypedDict):
    """What a draft replica says about itself.

    ``endpoint``: host:port of its gRPC listener; ``incarnation``: u64 of its engine; ``pid`` of its process.
    """

    endpoint: str
    incarnation: int
    model_hash: str
    tokenizer_hash: str
    pid: int


class DraftService:
    """Runs a draft behind a gRPC listener; blocking, so not for an event loop's thread."""

    def __init__(self, settings: DraftSettings, node_address: str = "127.0.0.1") -> None:
        """Load the model, listen, start the engine.

        Args:
            settings: of the draft.
            node_address: where targets find this machine, if the draft listens on all of its addresses.

        Raises:
            CheckpointError, ConfigError, LinkError: the model cannot be loaded or the port not be used.
        """
        check_listener(settings.host, settings.link)
        self._node_address = node_address
        if settings.model.cores is not None:
            pin_thread(settings.model.cores)  # the threads started below inherit it
        self.metrics = DraftMetrics()
        inbox = Inbox()
        self._engine = load_draft(settings, inbox, self.metrics)
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
            endpoint=self._listener.endpoint_at(self._node_address),
            incarnation=welcome.incarnation,
            model_hash=welcome.model_hash,
            tokenizer_hash=welcome.tokenizer_hash,
            pid=os.getpid(),
        )

    def status(self) -> dict[str, int]:
        """Open sessions and free memory of the engine, for operators and tests."""
        return {"pid": os.getpid(), **self._engine.snapshot()}

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
