"""A cluster over SSH on this machine, from ``ray up`` to ``ray down``: ``make test-cluster-ssh``.

Four hosts of namespaces: a desk, where the commands are typed, the head, and two workers that are reached by SSH alone.
The head gets a target, the workers a draft each. Needs root, iproute2, openssh-server and rsync; changes nothing but a
folder below /var/tmp, which it removes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.faults.hosts_scene import DASHBOARD_PORT, HEAD, HTTP_PORT, KEY, ray_environment, write_serve_file
from support.faults.http_scene import HttpScene
from support.faults.readers import Reader
from support.faults.trial import TEMPERATURES, wait_for
from support.hosts import FIRST, NETWORK, Host, Hosts, unavailable
from support.live_cluster import CONTEXT
from support.staged import Staged
from support.tiny import make_checkpoint, perturb

WORKERS = (f"{NETWORK}.{FIRST + 1}", f"{NETWORK}.{FIRST + 2}")
DESK = 3
COMMAND_S = 600.0
_BIN = Path(sys.executable).parent
_SSHD = "/usr/sbin/sshd"
SHIPPED = Path(__file__).parents[2] / "cluster_configs" / "on-premises.yaml"


def missing() -> str | None:
    """Why this cannot run here, or None."""
    reason = unavailable()
    if reason is None:
        absent = [tool for tool in (_SSHD, "ssh", "rsync", "ssh-keygen") if shutil.which(tool) is None]
        reason = f"{', '.join(absent)} not found: apt-get install openssh-server rsync" if absent else None
    for place in (Path.cwd(), Path(sys.executable).resolve()):
        if reason is None and place.is_relative_to("/tmp"):
            reason = f"{place} would not be seen: hosts have a /tmp of their own"
    return reason


class SshCluster(Staged, HttpScene):
    """The hosts with their SSH servers, and what is typed at the desk; a context manager."""

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="ssd-", dir="/var/tmp"))
        self.ssh_config = str(self._scratch / "ssh_config")
        self.token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self._scratch / "ray.token")}
        self.home = self._scratch / "home"
        self.home.mkdir()
        target = make_checkpoint(self._scratch / "target", max_context=CONTEXT)
        self._models = target, perturb(target, self._scratch / "draft")
        private = [Path("/tmp"), Path("/run"), self.home]
        self.hosts = Hosts(4, private)
        super().__init__(target, f"http://{HEAD}:{HTTP_PORT}", 200, KEY)

    def up(self, undo: ExitStack) -> None:
        undo.callback(shutil.rmtree, self._scratch)
        undo.callback(self.close)
        undo.enter_context(self.hosts)
        self._write_secrets()
        for host in self.hosts.hosts:
            host.run(["mount", "--bind", str(self._scratch / "passwd"), "/etc/passwd"])
        for host in self.hosts.hosts[:DESK]:
            self._start_sshd(host)

    def network(self) -> AbstractContextManager[None]:
        return self.hosts[DESK].network()

    def type(self, *words: str, **environment: str) -> None:
        """Run a command at the desk; what Ray prints is shown if it fails, what we print always."""
        print(f"$ {' '.join(words)}".replace(f"{self._scratch}/", "").replace(f"{_BIN}/", ""), end="", flush=True)
        began = time.monotonic()
        environment = self._environment() | environment
        printed = self.hosts[DESK].run(words, COMMAND_S, env=environment, stdin=subprocess.DEVNULL)
        print(f"   ({time.monotonic() - began:.0f} s)", flush=True)
        if words[0] == "ssd-cluster":
            print(printed, end="", flush=True)

    @contextmanager
    def dashboard(self, ray_file: str) -> Iterator[None]:
        """``ray dashboard`` meanwhile: the head's dashboard is at the desk too."""
        command = self.hosts[DESK].command(["ray", "dashboard", ray_file])
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        print(f"$ ray dashboard {Path(ray_file).name} &")
        with subprocess.Popen(command, env=self._environment(), **quiet) as forwarding:
            try:
                wait_for(lambda: self.listens("127.0.0.1", DASHBOARD_PORT), "the dashboard is at the desk", COMMAND_S)
                yield
            finally:
                forwarding.terminate()

    def write_files(self) -> tuple[str, str]:
        """The cluster file for ``ray up``, the shipped one with these hosts, and one for ``serve deploy``.

        Nothing is copied or installed: the hosts see this checkout and its environment.
        """
        content: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
        content["provider"] |= {"head_ip": HEAD, "worker_ips": list(WORKERS)}
        content["auth"] = {"ssh_user": "root", "ssh_private_key": str(self._scratch / "key")}
        content |= {"min_workers": len(WORKERS), "file_mounts": {}, "setup_commands": []}
        cluster = self._scratch / "cluster.yaml"
        cluster.write_text(yaml.safe_dump(content))
        return str(cluster), str(write_serve_file(*self._models, self._scratch, session_credit=1))

    def hits(self) -> dict[str, int]:
        """Hits in the caches of each draft that had some."""
        (target,) = self.view()["targets"]
        return {link["replica"]: link["lookups"]["hit"] for link in target["drafts"] if link["lookups"].get("hit")}

    def autoscaler_log(self) -> str:
        """The end of what the head says of its workers."""
        return self.hosts[0].run(["sh", "-c", "tail -n 40 /tmp/ray/session_latest/logs/monitor.*"])

    def running(self) -> list[str]:
        """Processes of Ray on all hosts, ended ones that nobody has waited for left out."""
        listings = [host.run(["ps", "-eo", "stat,args"]) for host in self.hosts.hosts]
        lines = [line for text in listings for line in text.splitlines() if not line.startswith("Z")]
        return [line for line in lines if "/ray/" in line or "ray::" in line]

    def _environment(self) -> dict[str, str]:
        return ray_environment() | {"HOME": str(self.home), "PATH": f"{_BIN}:{os.environ['PATH']}"}

    def _write_secrets(self) -> None:
        """Keys, Ray's token, and who root is on the hosts: ``ssh`` takes ``~`` from there, whatever HOME says."""
        (self._scratch / "ray.token").write_text(secrets.token_hex(32))
        options = f"IdentityFile {self._scratch}/key\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n"
        Path(self.ssh_config).write_text(options)
        users = Path("/etc/passwd").read_text().splitlines()
        ours = [f"root:x:0:0:root:{self.home}:/bin/bash", *(line for line in users if not line.startswith("root:"))]
        (self._scratch / "passwd").write_text("\n".join(ours) + "\n")
        for name in ("key", "hostkey"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._scratch / name)]
            subprocess.run(command, check=True, timeout=COMMAND_S)

    def _start_sshd(self, host: Host) -> None:
        """An SSH server whose sessions have this environment."""
        environment = self._environment()
        wanted = ("RAY_USAGE_STATS_ENABLED", "OMP_NUM_THREADS", "PYTHONPATH")
        setting = " ".join(f'"{name}={environment[name]}"' for name in wanted if name in environment)
        config = self._scratch / f"sshd-{host.address}"
        config.write_text(
            f"ListenAddress {host.address}\nHostKey {self._scratch}/hostkey\n"
            f"AuthorizedKeysFile {self._scratch}/key.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
            f"PermitRootLogin prohibit-password\nSetEnv {setting}\n"
        )
        token = " ".join(f"{name}={value}" for name, value in self.token.items())
        bashrc = f"export PATH={environment['PATH']} {token}"  # what the shipped file's setup_commands write
        host.run(["sh", "-c", f'mkdir -p /run/sshd && echo "{bashrc}" > {self.home}/.bashrc'])
        host.run([_SSHD, "-f", str(config), "-E", str(self._scratch / f"sshd-{host.address}.log")])


def main() -> int:
    """Run it all; exit code 0: answered as ``ar`` does, and nothing left. 77: it cannot run here."""
    reason = missing()
    if reason is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return 77
    with SshCluster() as cluster:
        ray_file, serve_file = cluster.write_files()
        cluster.type("ray", "up", "-y", "--no-config-cache", ray_file)
        try:
            with cluster.dashboard(ray_file):
                cluster.type("ssd-cluster", "deploy", "--nodes-may-come", serve_file, **cluster.token)
            use(cluster)
        except BaseException:
            print(cluster.autoscaler_log(), file=sys.stderr)
            raise
        cluster.type("ray", "down", "-y", ray_file)
        for address in WORKERS:  # with this provider `ray down` stops the head alone
            cluster.type("ssh", "-F", cluster.ssh_config, f"root@{address}", f"{_BIN}/ray stop")
        left = cluster.running()
        assert not left, f"left: {left}"
    print("no process of Ray is left on any host")
    return 0


def use(cluster: SshCluster) -> None:
    """Say where everything runs, and ask until both drafts have helped."""
    wait_for(lambda: len(cluster.view()["drafts"]) == len(WORKERS), "both drafts are in the view", COMMAND_S)
    view = cluster.view()
    for kind in ("targets", "drafts"):
        print(f"{kind} run on {', '.join(sorted(one['node'] for one in view[kind]))}")
    asked = [{"temperature": t, "seed": 3, "max_tokens": cluster.max_tokens, "ignore_eos": True} for t in TEMPERATURES]
    readers = [Reader(lambda params=params: cluster.ask(params)) for params in asked]
    wait_for(lambda: len(cluster.hits()) == len(WORKERS), "both drafts have hits", COMMAND_S)
    for params, reader in zip(asked, readers, strict=True):
        reader.finish(COMMAND_S)
        assert reader.failure is None, reader.failure
        assert set(reader.answers) == {cluster.plain(params)}, "another text than plain decoding"
        print(f"T = {params['temperature']:g}: {len(reader.answers)} x {cluster.max_tokens} tokens, the text is ar's")
    print(f"hits by draft: {', '.join(map(str, sorted(cluster.hits().values())))}")


if __name__ == "__main__":
    sys.exit(main())
