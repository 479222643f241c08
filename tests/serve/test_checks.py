"""What is found out before anything starts: cores, port, a second start."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ssd_cluster.errors import StartupError
from ssd_cluster.serve.checks import only_instance, require_cores, require_free_port
from ssd_cluster.serve.files import read_serve_file

LAPTOP = Path(__file__).parents[2] / "cluster_configs" / "laptop.yaml"
HOLDER = (
    "import sys; from pathlib import Path; from ssd_cluster.serve.checks import only_instance\n"
    "with only_instance(Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.read()\n"
)


def test_missing_cores_are_named() -> None:
    file = read_serve_file(LAPTOP)
    require_cores(file, {0, 1})
    require_cores(file, {0, 1, 2, 3})
    with pytest.raises(StartupError, match=r"too few cores: drafts-smollm2: draft\.model\.cores wants 1, .* gives 0;"):
        require_cores(file, {0})
    with pytest.raises(StartupError, match="gives 4, 5;"):
        require_cores(file, {4, 5})


def test_a_busy_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 cannot be used"):
            require_free_port("127.0.0.1", port)
    require_free_port("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_named() -> None:
    with pytest.raises(StartupError, match=r"192\.0\.2\.1"):
        require_free_port("192.0.2.1", 8000)


def test_one_instance_at_a_time(tmp_path: Path) -> None:
    lock = tmp_path / "cache" / "serve.lock"
    with only_instance(lock):
        assert lock.read_text() == f"{os.getpid()}\n"
        with pytest.raises(StartupError, match=re.escape(f"already running (pid {os.getpid()})")), only_instance(lock):
            pass
    assert not lock.exists()
    with only_instance(lock):
        pass


def test_a_killed_instance_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "serve.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StartupError, match=f"pid {holder.pid}"), only_instance(lock):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate(timeout=20)
    assert lock.exists()
    with only_instance(lock):
        assert lock.read_text() == f"{os.getpid()}\n"
    assert not lock.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="SSD_CLUSTER_CACHE"), only_instance(tmp_path / "file" / "serve.lock"):
        pass
