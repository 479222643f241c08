"""A target and a pool of two drafts under Ray Serve on two nodes of this machine, asked over HTTP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from ssd_cluster.serve.local_ray import LocalRay
from ssd_cluster.serve.view import cluster_view
from support.faults.http_scene import HttpScene, application
from support.faults.trial import DEADLINE_S, SPECULATION, wait_for
from support.live_cluster import free_port, model_args

HEAD_CPUS = 3
NODE_CPUS = 1


class PoolScene(HttpScene):
    """See ``trial.Scene``; a context manager. One draft runs on each node, the target on the head.

    Args:
        target, draft: checkpoints.
        max_tokens: length of every answer.
    """

    def __init__(self, target: Path, draft: Path, max_tokens: int) -> None:
        self._http_port = free_port()
        super().__init__(target, f"http://127.0.0.1:{self._http_port}", max_tokens)
        self._models = target, draft

    def __enter__(self) -> PoolScene:
        self._ray = LocalRay()
        try:
            self._ray.start(HEAD_CPUS, "127.0.0.1", self._http_port)
            self.deploy(drafts=1)
            wait_for(lambda: self.states("target") == self.states("drafts") == ["RUNNING"], "both run")
            wait_for(self.healthy, "the target answers")
            self.node = self._start_node()
            self.deploy(drafts=2)
            self.whole()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.stop([], 0.0, lambda: True)
        self.close()

    def deploy(self, drafts: int) -> None:
        """Both applications, with so many drafts, as ``serve deploy`` does it."""
        from ray.serve._private.api import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        target, draft = (model_args(path) for path in self._models)
        args = {"model": target, "draft_application": "drafts", "self_test": False, "speculation": SPECULATION}
        applications = [
            application("drafts", None, {"draft": {"model": draft}}, num_replicas=drafts, max_replicas_per_node=1),
            application("target", "/", {"target": args}),
        ]
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": applications}))

    def whole(self) -> None:
        """Wait until two drafts run, on two nodes, and the target answers."""
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

    def on_the_node(self, draft: dict[str, Any]) -> bool:
        """Whether a draft runs on the second node."""
        return draft["pid"] in {process.pid for process in psutil.Process(self.node.pid).children(recursive=True)}

    def kill_node(self) -> None:
        """End the second node at once: raylet, workers and what started them."""
        family = [self.node, *psutil.Process(self.node.pid).children(recursive=True)]
        for process in family:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.node.wait(DEADLINE_S)

    def renew_node(self) -> None:
        self.node = self._start_node()

    def _start_node(self) -> subprocess.Popen[bytes]:
        import ray

        before = _alive_nodes()
        address = ray.get_runtime_context().gcs_address
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--block"]
        command += ["--node-ip-address=127.0.0.1", f"--num-cpus={NODE_CPUS}", "--object-store-memory=100000000"]
        node = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        wait_for(lambda: _alive_nodes() == before + 1, "the second node has joined")
        return node


def _alive_nodes() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
