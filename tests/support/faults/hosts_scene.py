"""A cluster as users have it, on three hosts with their own addresses: the head with a target, two with a draft each.

``ray start`` on each, ``serve deploy`` of a file, TLS on the draft links, an API key on the HTTP endpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import yaml

from ssd_cluster.config_link import TlsSettings
from support.certificates import Authority, write_secrets
from support.faults.http_scene import HttpScene, application
from support.faults.trial import SPECULATION, wait_for
from support.hosts import Host, Hosts
from support.live_cluster import model_args
from support.staged import Staged

HEAD = "10.77.0.10"
KEY = "key-of-the-three-hosts"
COMMAND_S = 120.0
HTTP_PORT = 8000
DASHBOARD_PORT = 8265
START_TRIES = 3
_BIN = Path(sys.executable).parent


class HostsScene(Staged, HttpScene):
    """See ``trial.Scene``; a context manager.

    Args:
        target, draft: checkpoints.
        max_tokens: length of every answer.

    Attributes:
        hosts: the machines; 0 is the head.
    """

    def __init__(self, target: Path, draft: Path, max_tokens: int) -> None:
        super().__init__(target, f"http://{HEAD}:{HTTP_PORT}", max_tokens, KEY)
        self._models = target, draft
        self._folder = Path(tempfile.mkdtemp(dir=target.parent))  # certificates, keys, logs
        # Ray puts Unix sockets there, whose names may not be long.
        self._scratch = tempfile.TemporaryDirectory(prefix="ssd-hosts-", dir="/tmp")
        self.hosts = Hosts(3, [Path(self._scratch.name)])
        self._started: list[subprocess.Popen[bytes]] = []

    def up(self, undo: ExitStack) -> None:
        undo.callback(self._scratch.cleanup)
        undo.callback(self.close)
        undo.callback(lambda: [process.wait(COMMAND_S) for process in self._started])
        undo.enter_context(self.hosts)
        ports = ["--port=6379", f"--dashboard-host={HEAD}"]
        self._ray_start(self.hosts[0], ["--head", "--num-cpus=2", "--labels=role=target", *ports])
        wait_for(lambda: self.listens(HEAD, DASHBOARD_PORT), "the dashboard of the head listens")
        for host in self.hosts.hosts[1:]:
            self._ray_start(host, [f"--address={HEAD}:6379", "--num-cpus=1", "--labels=role=draft"])
        deploy = [str(_BIN / "serve"), "deploy", "--address", f"http://{HEAD}:{DASHBOARD_PORT}"]
        file = write_serve_file(*self._models, self._folder)
        self.hosts[0].run([*deploy, str(file)], COMMAND_S, env=ray_environment())
        wait_for(self.healthy, "the target answers")
        wait_for(lambda: len(self.drafts()) == 2, "both drafts run")

    def network(self) -> AbstractContextManager[None]:
        return self.hosts[0].network()

    def drafts(self) -> dict[str, dict[str, Any]]:
        """The draft replicas in the cluster's view, by the address of their host."""
        return {one["node"]: one for one in self.view()["drafts"]}

    def _ray_start(self, host: Host, options: list[str]) -> None:
        """Start a node and wait until it has joined; Ray gives it 30 s, and on a busy machine that may not do."""
        command = [str(_BIN / "ray"), "start", "--block", f"--node-ip-address={host.address}", *options]
        command += [f"--temp-dir={self._scratch.name}", "--object-store-memory=100000000"]
        log = self._folder / f"ray-{host.address}.log"
        for _ in range(START_TRIES):
            with log.open("wb") as out:
                node = subprocess.Popen(host.command(command), stdout=out, stderr=out, env=ray_environment())
            self._started.append(node)
            wait_for(lambda: "Ray runtime started" in log.read_text() or self._started[-1].poll() is not None, "Ray")
            if node.poll() is None:
                return
        raise AssertionError(f"ray start on {host.address}: {log.read_text()[-2000:]}")


def write_serve_file(target_path: Path, draft_path: Path, folder: Path, **draft_settings: Any) -> Path:
    """What is deployed: TLS between hosts, a key for HTTP, one draft on each host of that role."""
    target, draft = model_args(target_path), model_args(draft_path)
    authority = Authority(folder / "authority")
    draft_tls = authority.issue("draft", dns="drafts.internal", usage="server")
    target_tls = authority.issue("target", usage="client", server_name="drafts.internal")
    keys = write_secrets(folder / "keys", KEY)
    draft_args = {
        "model": draft,
        "placement": {"label_selector": {"role": "draft"}, "max_replicas_per_node": 1},
        "host": "0.0.0.0",
        "link": {"tls": _plain(draft_tls)},
        **draft_settings,
    }
    target_args = {
        "model": target,
        "placement": {"label_selector": {"role": "target"}},
        "served_name": "tiny",
        "draft_application": "drafts",
        "self_test": False,
        "speculation": SPECULATION,
        "link": {"tls": _plain(target_tls)},
        "http": {"api_keys_file": str(keys)},
    }
    content = {
        "http_options": {"host": "0.0.0.0", "port": HTTP_PORT},
        "applications": [
            application("drafts", None, {"draft": draft_args}, num_replicas=2),
            application("tiny", "/", {"target": target_args}),
        ],
    }
    file = folder / "hosts.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def _plain(tls: TlsSettings) -> dict[str, str]:
    return {name: str(value) for name, value in tls.model_dump().items() if value is not None}


def ray_environment() -> dict[str, str]:
    """Ours, without what keeps Ray on loopback in other tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return inherited | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
