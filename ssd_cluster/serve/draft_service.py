"""A draft replica without Ray: engine thread, gRPC loop thread, listener."""

from __future__ import annotations

import os
from typing import TypedDict

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.engine import DraftEngine
from ssd_cluster.errors import EngineStopped
from ssd_cluster.link.grpc_backend import Listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import DraftMetrics
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.model.runner import load_runner
from ssd_cluster.text.tokenizer import Tokenizer

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


class DraftCore:
    """A loaded draft with its engine; ``inbox`` is where streams of targets deliver. Blocking."""

    def __init__(self, settings: DraftSettings) -> None:
        """Load the model.

        Raises:
            CheckpointError, ConfigError: it cannot be loaded.
        """
        self.metrics = DraftMetrics()
        self.inbox = Inbox()
        self.tokenizer = Tokenizer.load(resolve_checkpoint(settings.model.path))
        self.runner = load_runner(settings.model, tail_slots=settings.row_credit, tail_depth=settings.k_max)
        self.engine = DraftEngine(
            self.runner,
            settings,
            self.inbox,
            tokenizer_hash=self.tokenizer.hash,
            vocabulary=self.tokenizer.vocabulary,
            metrics=self.metrics,
        )

    def close(self) -> None:
        """Stop the engine, which ends its streams, and drop the model; safe to call twice."""
        if self.engine.stop(STOP_TIMEOUT_S):
            self.runner.close()


class DraftService:
    """Runs a draft behind a gRPC listener; blocking, so not for an event loop's thread."""

    def __init__(self, settings: DraftSettings) -> None:
        """Load the model, listen, start the engine.

        Raises:
            CheckpointError, ConfigError, LinkError: the model cannot be loaded or the port not be used.
        """
        self._core = DraftCore(settings)
        self.metrics = self._core.metrics
        self._loop = LinkLoop("draft-link")
        self._loop.start()
        try:
            self._listener = Listener(settings.host, settings.port, self._core.inbox, settings.link, self._loop)
        except BaseException:
            self._loop.close()
            raise
        self._core.engine.start()

    def endpoint(self) -> DraftEndpoint:
        """Where and what this draft is."""
        return DraftEndpoint(
            endpoint=self._listener.endpoint,
            incarnation=self._core.engine.incarnation,
            model_hash=self._core.runner.model_hash,
            tokenizer_hash=self._core.tokenizer.hash,
            pid=os.getpid(),
        )

    def status(self) -> dict[str, int]:
        """Open sessions and KV blocks, for operators and tests."""
        pool = self._core.runner.pool
        return {
            "pid": os.getpid(),
            "sessions": self._core.engine.n_sessions,
            "free_blocks": pool.n_free,
            "total_blocks": pool.n_total,
        }

    def check(self) -> None:
        """Say whether the engine lives.

        Raises:
            EngineStopped: it has failed.
        """
        failure = self._core.engine.failure
        if failure is not None:
            raise EngineStopped(f"the draft engine has failed: {type(failure).__name__}: {failure}")

    def close(self) -> None:
        """Send targets elsewhere, end their streams, stop the engine, release the port; safe to call twice."""
        self._core.engine.drain()
        self._core.close()
        self._listener.close()
        self._loop.close()
