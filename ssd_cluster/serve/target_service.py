"""A target replica without Ray: engine thread, link to its draft, and the HTTP application in front."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from ssd_cluster import __version__
from ssd_cluster.api.app import create_app
from ssd_cluster.api.client import LocalEngineClient, ServedModel
from ssd_cluster.api.keys import ApiKeys
from ssd_cluster.draft.engine import DraftEngine, load_draft
from ssd_cluster.errors import EngineStopped
from ssd_cluster.link.grpc_backend import connect
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.model.device import pin_thread
from ssd_cluster.model.parallel.launcher import RankLauncher
from ssd_cluster.model.runner import load_runner
from ssd_cluster.serve.args import TargetAppArgs
from ssd_cluster.serve.changes import changed_speculation, target_changes
from ssd_cluster.serve.self_test import SelfTest
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.leases import Leasing, Lessor
from ssd_cluster.target.replica import Connector
from ssd_cluster.text.tokenizer import Tokenizer

STOP_TIMEOUT_S = 5.0


class TargetService:
    """Loads and runs a target; blocking, so not for an event loop's thread."""

    def __init__(
        self, args: TargetAppArgs, replica: str, lessor: Lessor | None, launcher: RankLauncher | None = None
    ) -> None:
        """Load the model and start the engine. It does not wait for a draft: requests are served without one.

        Args:
            args: of the application.
            replica: label of this replica in /metrics.
            lessor: grants leases on the drafts of ``draft_application``; closed with this service. None without it.
            launcher: of the other ranks of a model with ``tensor_parallel``; None: in child processes.

        Raises:
            CheckpointError, ConfigError: the model cannot be loaded.
        """
        settings = args.engine_settings
        self._args = args
        if settings.model.cores is not None:
            pin_thread(settings.model.of_rank(0).cores or ())  # the threads started below inherit it
        self.metrics = TargetMetrics()
        path = args.http.api_keys_file
        self._keys = ApiKeys(path, self.metrics.unauthorized.inc) if path is not None else None
        self._tokenizer = Tokenizer.load(resolve_checkpoint(settings.model.path))
        self._runner = load_runner(settings.model, launcher=launcher)
        self._loop = LinkLoop("target-link")
        self._draft: DraftEngine | None = None
        connectors = self._connectors(args)
        leasing = self._leasing(args, lessor)
        self._engine = TargetEngine(self._runner, self._tokenizer, settings, connectors, self.metrics, leasing=leasing)
        self._engine.start()
        if args.self_test and (connectors or leasing is not None):
            self.self_test = SelfTest(self._engine, self._tokenizer, self._tested)
            self.self_test.start()
        self._model = ServedModel(
            name=settings.name,
            tokenizer=self._tokenizer,
            max_context=self._runner.max_context,
            vocabulary=self._tokenizer.vocabulary,
            default_max_tokens=settings.default_max_tokens,
            fingerprint=_fingerprint(self._runner.model_hash, str(self._runner.dtype)),
            replica=replica,
            registry=self.metrics.registry,
        )

    def _tested(self, acceptance: float | None) -> None:
        if acceptance is not None:
            self.metrics.self_test_acceptance.set(acceptance)

    def _connectors(self, args: TargetAppArgs) -> list[Connector]:
        if args.in_process_draft is None:
            return []
        draft_inbox = Inbox()
        self._draft = load_draft(args.in_process_draft, draft_inbox)
        self._draft.start()
        return [lambda inbox: pair(inbox, draft_inbox)[0]]

    def _leasing(self, args: TargetAppArgs, lessor: Lessor | None) -> Leasing | None:
        if lessor is None:
            return None
        self._loop.start()
        return Leasing(lessor, lambda endpoint, inbox: connect(endpoint, inbox, args.link, self._loop))

    def app(self, cluster: Callable[[], dict[str, Any]] | None = None) -> FastAPI:
        """The HTTP application over this engine; ``cluster`` says what /v1/cluster answers and may block."""
        return create_app(LocalEngineClient(self._engine), self._model, self._keys, cluster)

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take a ``user_config`` over, relative to the arguments.

        Raises:
            ConfigError: it cannot be taken over; everything stays as it is.
        """
        self._engine.retune(changed_speculation(self._args, target_changes(user_config)))

    def status(self) -> dict[str, Any]:
        """The engine's snapshot, what it serves and our pid, for operators and tests."""
        settings = self._engine.settings
        changeable = set(settings.speculation.IN_PLACE)
        return {
            "kind": "target",
            "model": self._model.name,
            "mode": settings.mode.value,
            "speculation": settings.speculation.model_dump(mode="json", include=changeable),
            "pid": os.getpid(),
            **dataclasses.asdict(self._engine.snapshot()),
        }

    def check(self) -> None:
        """Say whether the engine serves; what happens to drafts does not matter.

        Raises:
            EngineStopped: it has failed, or makes no progress although there is work.
        """
        if not self._engine.healthy():
            raise EngineStopped("the target engine makes no progress")

    def close(self) -> None:
        """End live requests, close the link, stop the engine; safe to call twice."""
        self._engine.stop(STOP_TIMEOUT_S)
        if self._draft is not None:
            self._draft.stop(STOP_TIMEOUT_S)
        self._loop.close()
        self._runner.close()


def _fingerprint(*parts: str) -> str:
    return "fp_" + hashlib.sha256("\n".join((__version__, *parts)).encode()).hexdigest()[:10]
