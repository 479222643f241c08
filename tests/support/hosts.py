"""Hosts with addresses of their own on this machine: Linux namespaces on one bridge that leads nowhere else.

A host is a process that sleeps in its own network, process, mount and IPC namespaces; the bridge is another one.
Nothing has a name outside: two sets of hosts live side by side, and when the process that made them ends, however that
comes, the kernel ends everything in them and takes their links away.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from support.staged import Staged

NETWORK = "10.77.0"
FIRST = 10
START_S = 10.0
_TOOLS = ("ip", "unshare", "nsenter")
_CLONE_NEWNET = 0x40000000
_SLEEP = "while read -r line; do :; done"  # until the pipe from its maker closes
_UNSHARE = ("unshare", "--net", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc")


def unavailable() -> str | None:
    """Why hosts cannot be made here, or None."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts need {', '.join(missing)} (packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "hosts need root"
    tried = subprocess.run(
        [*_UNSHARE, "sh", "-c", "mount -t tmpfs none /mnt && ip link add v0 type veth peer name v1"],
        capture_output=True,
        text=True,
        timeout=START_S,
    )
    return None if tried.returncode == 0 else f"hosts need network namespaces: {tried.stderr.strip()[:200]}"


class Host:
    """One host.

    Args:
        index: its number.
        private: folders that are empty and its own inside; they must exist.

    Attributes:
        address: IPv4.
        pid: of its first process; everything in it ends with that.
    """

    def __init__(self, index: int, private: Sequence[Path]) -> None:
        self.address = f"{NETWORK}.{FIRST + index}"
        maker = [*_UNSHARE, "sh", "-c", _SLEEP]  # it complains of a signal mask when its child is killed
        self._maker = subprocess.Popen(maker, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.pid = _first_child(self._maker)
        for folder in private:
            self.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(folder)])
        self.run(["ip", "link", "set", "lo", "up"])

    def command(self, words: Sequence[str]) -> list[str]:
        """What runs ``words`` inside, for ``subprocess``."""
        return ["nsenter", "--target", str(self.pid), "--all", f"--wd={os.getcwd()}", "--", *words]

    def run(self, words: Sequence[str], timeout_s: float = START_S, **options: Any) -> str:
        """Run a command inside and return what it prints.

        Raises:
            AssertionError: it fails; with what it printed.
        """
        done = subprocess.run(self.command(words), capture_output=True, text=True, timeout=timeout_s, **options)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    @contextmanager
    def network(self) -> Iterator[None]:
        """Sockets that this thread opens meanwhile are the host's."""
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.pid}/ns/net") as its:
            _enter(its.fileno())
            try:
                yield
            finally:
                _enter(ours.fileno())

    def kill(self) -> None:
        """End it and everything inside at once."""
        if self._maker.poll() is None:
            os.kill(self.pid, 9)
            self._maker.wait(START_S)
        if self._maker.stdin is not None:
            self._maker.stdin.close()


class Hosts(Staged):
    """``n`` hosts at 10.77.0.10, .11, ... of a network of their own; a context manager.

    Args:
        n: how many.
        private: see ``Host``; /dev/shm is private in any case.
    """

    def __init__(self, n: int, private: Sequence[Path] = ()) -> None:
        self._n = n
        self._private = [Path("/dev/shm"), *private]
        self.hosts: list[Host] = []

    def up(self, undo: ExitStack) -> None:
        self._switch = subprocess.Popen(["unshare", "--net", "sh", "-c", _SLEEP], stdin=subprocess.PIPE)
        undo.callback(self._switch.communicate, timeout=START_S)  # closes the pipe that it waits at
        _await_namespace(self._switch.pid)
        self._at_switch("ip", "link", "add", "br0", "type", "bridge")
        self._at_switch("ip", "link", "set", "br0", "up")
        for index in range(self._n):
            self.hosts.append(Host(index, self._private))
            undo.callback(self.hosts[index].kill)
            self._plug_in(index)

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def cut(self, index: int) -> None:
        """Take a host's link down: nothing arrives and nothing is reset."""
        self._at_switch("ip", "link", "set", f"p{index}", "down")

    def heal(self, index: int) -> None:
        self._at_switch("ip", "link", "set", f"p{index}", "up")

    def _plug_in(self, index: int) -> None:
        host = self.hosts[index]
        ends = ["eth0", "netns", str(host.pid), "type", "veth", "peer", "name", f"p{index}"]
        subprocess.run(["ip", "link", "add", *ends, "netns", str(self._switch.pid)], check=True, timeout=START_S)
        self._at_switch("ip", "link", "set", f"p{index}", "master", "br0", "up")
        host.run(["ip", "addr", "add", f"{host.address}/24", "dev", "eth0"])
        host.run(["ip", "link", "set", "eth0", "up"])

    def _at_switch(self, *words: str) -> None:
        command = ["nsenter", "--target", str(self._switch.pid), "--net", "--", *words]
        subprocess.run(command, check=True, timeout=START_S)


def _first_child(maker: subprocess.Popen[bytes]) -> int:
    """The process that ``unshare`` has forked, once it has its own /proc."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        children = psutil.Process(maker.pid).children()
        if children and children[0].name() == "sh":
            return children[0].pid
        assert maker.poll() is None, "unshare has failed"
        time.sleep(0.005)
    raise AssertionError("the host did not start")


def _await_namespace(pid: int) -> None:
    deadline = time.monotonic() + START_S
    ours = os.readlink("/proc/self/ns/net")
    while os.readlink(f"/proc/{pid}/ns/net") == ours:
        assert time.monotonic() < deadline, "the bridge's host did not start"
        time.sleep(0.005)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
