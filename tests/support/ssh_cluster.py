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
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from support.faults.hosts_scene import HEAD, HTTP_PORT, KEY, ray_environment, write_serve_file
from support.faults.http_scene import HttpScene
from support.faults.trial import TEMPERATURES, wait_for
from support.hosts import FIRST, NETWORK, Hosts, unavailable
from support.live_cluster import CONTEXT
from support.tiny import make_checkpoint, perturb

WORKERS = (f"{NETWORK}.{FIRST + 1}", f"{NETWORK}.{FIRST + 2}")
DESK = 3
COMMAND_S = 300.0
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


class SshCluster(HttpScene):
    """The hosts with their SSH servers, and what is typed at the desk; a context manager."""

    def __init__(self) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="ssd-", dir="/var/tmp"))
        self.home = self._scratch / "home"
        self.home.mkdir()
        target = make_checkpoint(self._scratch / "target", max_context=CONTEXT)
        self._models = target, perturb(target, self._scratch / "draft")
        private = [Path("/tmp"), Path("/run"), self.home]
        self.hosts = Hosts(4, private)
        super().__init__(target, f"http://{HEAD}:{HTTP_PORT}", 200, KEY)

    def __enter__(self) -> SshCluster:
        self.hosts.__enter__()
        try:
            self._keys()
            for host in self.hosts.hosts[:DESK]:
                self._start_sshd(host.address)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hosts.__exit__(kind, error, trace)
        self.close()
        shutil.rmtree(self._scratch)

    def network(self) -> AbstractContextManager[None]:
        return self.hosts[DESK].network()

    def type(self, *words: str) -> None:
        """Run a command at the desk and show what it prints; fails as it does."""
        print(f"\n$ {' '.join(words)}", flush=True)
        began = time.monotonic()
        command = self.hosts[DESK].command([str(_BIN / words[0]), *words[1:]])
        subprocess.run(command, check=True, timeout=COMMAND_S, env=self._environment(), stdin=subprocess.DEVNULL)
        print(f"({time.monotonic() - began:.0f} s)", flush=True)

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
        return str(cluster), str(write_serve_file(*self._models, self._scratch))

    def running(self) -> list[str]:
        """Ray's processes on all hosts."""
        listings = [host.run(["ps", "-eo", "args"]) for host in self.hosts.hosts]
        return [line for text in listings for line in text.splitlines() if "gcs_server" in line or "raylet" in line]

    def _environment(self) -> dict[str, str]:
        more = {"HOME": str(self.home), "RAY_enable_autoscaler_v2": "0", "PATH": f"{_BIN}:{os.environ['PATH']}"}
        return ray_environment() | more

    def _keys(self) -> None:
        (self._scratch / "ray.token").write_text(secrets.token_hex(32))
        for name in ("key", "hostkey"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._scratch / name)]
            subprocess.run(command, check=True, timeout=COMMAND_S)

    def _start_sshd(self, address: str) -> None:
        """An SSH server whose sessions have the host's own home and this environment."""
        host = next(one for one in self.hosts.hosts if one.address == address)
        environment = self._environment()
        wanted = ("HOME", "RAY_USAGE_STATS_ENABLED", "OMP_NUM_THREADS", "PYTHONPATH")
        setting = " ".join(f'"{name}={environment[name]}"' for name in wanted if name in environment)
        config = self._scratch / f"sshd-{address}"
        config.write_text(
            f"ListenAddress {address}\nHostKey {self._scratch}/hostkey\nAuthorizedKeysFile {self._scratch}/key.pub\n"
            f"StrictModes no\nUsePAM no\nPidFile none\nPermitRootLogin prohibit-password\nSetEnv {setting}\n"
        )
        token = f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={self._scratch}/ray.token"
        bashrc = f"export PATH={environment['PATH']} {token}"  # what the shipped file's setup_commands write
        host.run(["sh", "-c", f'mkdir -p /run/sshd && echo "{bashrc}" > {self.home}/.bashrc'])
        host.run([_SSHD, "-f", str(config), "-E", str(self._scratch / f"sshd-{address}.log")])


def main() -> int:
    """Run it all; exit code 0: answered as ``ar`` does, and nothing left. 77: it cannot run here."""
    reason = missing()
    if reason is not None:
        print(f"skipped: {reason}", file=sys.stderr)
        return 77
    with SshCluster() as cluster:
        ray_file, serve_file = cluster.write_files()
        cluster.type("ray", "up", "-y", "--no-config-cache", ray_file)
        cluster.type("ray", "exec", ray_file, f"serve deploy {serve_file}")
        wait_for(cluster.healthy, "the target answers", COMMAND_S)
        wait_for(lambda: len(cluster.view()["drafts"]) == len(WORKERS), "a draft runs on each worker", COMMAND_S)
        print(f"\ntarget and drafts run on {sorted({one['node'] for one in cluster.view()['drafts']})}")
        for temperature in TEMPERATURES:
            params = {"temperature": temperature, "seed": 3, "max_tokens": cluster.max_tokens, "ignore_eos": True}
            assert "".join(cluster.ask(params)) == cluster.plain(params), "another text than plain decoding"
        print(f"hits of the drafts: {cluster.counter('ssd:cache_lookups_total', result='hit'):.0f}; the text is ar's")
        cluster.type("ray", "down", "-y", ray_file)
        left = cluster.running()
        assert not left, f"ray down has left {left}"
    print("\nall gone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
