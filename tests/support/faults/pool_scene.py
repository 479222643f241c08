"""A target and a pool of two drafts under Ray Serve on this machine, asked over HTTP."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from ssd_cluster.serve.local_ray import LocalRay
from ssd_cluster.serve.view import cluster_view
from support.faults.http_scene import HttpScene, application
from support.faults.trial import DEADLINE_S, SPECULATION, wait_for
from support.live_cluster import free_port, model_args
from support.staged import Staged

CPUS = 4


class PoolScene(Staged, HttpScene):
    """See ``trial.Scene``; a context manager.

    Args:
        target, draft: checkpoints.
        max_tokens: length of every answer.
    """

    def __init__(self, target: Path, draft: Path, max_tokens: int) -> None:
        self._http_port = free_port()
        super().__init__(target, f"http://127.0.0.1:{self._http_port}", max_tokens)
        self._models = target, draft

    def up(self, undo: ExitStack) -> None:
        undo.callback(self.close)
        ray = LocalRay()
        undo.callback(ray.stop, [], 0.0, lambda: True)
        ray.start(CPUS, "127.0.0.1", self._http_port)
        self.deploy(drafts=2)
        self.whole()

    def deploy(self, drafts: int) -> None:
        """Both applications, with so many drafts, as ``serve deploy`` does it."""
        from ray.serve._private.api import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        target, draft = (model_args(path) for path in self._models)
        args = {"model": target, "draft_application": "drafts", "self_test": False, "speculation": SPECULATION}
        applications = [
            application("drafts", None, {"draft": {"model": draft}}, num_replicas=drafts),
            application("target", "/", {"target": args}),
        ]
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": applications}))

    def whole(self) -> None:
        """Wait until two drafts run and the target answers."""
        wait_for(lambda: self.states("drafts") == ["RUNNING", "RUNNING"], "two drafts run")
        wait_for(lambda: len(self.drafts()) == 2, "two drafts are in the view")
        wait_for(self.healthy, "the target answers")

    def states(self, application: str) -> list[str]:
        """States of the replicas of an application."""
        from ray import serve

        found = serve.status().applications.get(application)
        states = [d.replica_states for d in found.deployments.values()] if found is not None else []
        return sorted(state for counts in states for state, count in counts.items() for _ in range(count))

    def drafts(self) -> dict[str, dict[str, Any]]:
        """The draft replicas in the cluster's view, by name."""
        return {one["replica"]: one for one in cluster_view()["drafts"]}

    def target_pid(self) -> int:
        from ray import serve

        handle = serve.get_deployment_handle("target", app_name="target")
        return int(handle.status.remote().result(timeout_s=DEADLINE_S)["pid"])

    def controller_pid(self) -> int:
        """The process of Serve's controller."""
        (found,) = [p for p in psutil.Process().children(recursive=True) if "ServeController" in _command(p)]
        return found.pid


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
