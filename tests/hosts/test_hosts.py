"""Hosts of namespaces: addresses of their own, links that are cut without a reset, nothing left however they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.hosts import Hosts, unavailable
from support.live_cluster import until

WHY_NOT = unavailable()
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)), pytest.mark.timeout(120)]

MAKER = """
import sys, time
from support.hosts import Hosts
with Hosts(2) as hosts:
    print(*(host.pid for host in hosts.hosts), flush=True)
    time.sleep(600)
"""


def test_hosts_talk_until_one_is_cut_off_and_again_when_it_is_back() -> None:
    with Hosts(2) as hosts:
        with hosts[1].network():
            server = socket.create_server((hosts[1].address, 0))
        with hosts[0].network():
            client = socket.create_connection(server.getsockname(), timeout=10)
        other = server.accept()[0]
        assert client.getsockname()[0] == hosts[0].address
        client.settimeout(0.5)
        hosts.cut(1)
        other.sendall(b"x")
        with pytest.raises(TimeoutError):
            client.recv(1)
        hosts.heal(1)
        client.settimeout(30)
        assert client.recv(1) == b"x", "what was sent meanwhile arrives: nothing was reset"
        for one in (server, client, other):
            one.close()


def test_a_private_folder_is_empty_and_its_own(tmp_path: Path) -> None:
    (tmp_path / "ours").write_text("x")
    with Hosts(2, [tmp_path]) as hosts:
        hosts[0].run(["touch", str(tmp_path / "its")])
        assert hosts[0].run(["ls", str(tmp_path)]).split() == ["its"]
        assert hosts[1].run(["ls", str(tmp_path)]) == ""
        assert len(hosts[1].run(["ps", "-e", "-o", "pid="]).split()) <= 2
    assert [file.name for file in tmp_path.iterdir()] == ["ours"]


def test_two_sets_live_side_by_side() -> None:
    with Hosts(1) as one, Hosts(1) as two:
        assert one[0].address == two[0].address
        one[0].kill()
        assert two[0].run(["echo", "here"]) == "here\n"


def test_nothing_is_left_when_their_maker_is_killed() -> None:
    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")])
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert maker.stdout is not None
    pids = [int(pid) for pid in maker.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(psutil.pid_exists, pids))
    maker.send_signal(signal.SIGKILL)
    maker.wait(30)
    maker.stdout.close()
    until(lambda: not any(map(psutil.pid_exists, pids)), "the hosts have ended with their maker")
