"""``ssd-cluster serve FILE`` as a user runs it: it answers, it refuses in one line, it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from support.live_cluster import DEADLINE_S, Checkpoints, free_port, until, write_checkpoints

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


class Command:
    """The command in a process group of its own, as in a terminal."""

    def __init__(self, arguments: list[str], folder: Path, cache: Path) -> None:
        own = Path(tempfile.mkdtemp(dir=folder))
        self._out, self._err = own / "out", own / "err"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ssd_cluster.cli", "serve", *arguments],
            stdout=self._out.open("w"),
            stderr=self._err.open("w"),
            env={**os.environ, "SSD_CLUSTER_CACHE": str(cache)},
            start_new_session=True,
        )
        self._family: dict[int, psutil.Process] = {}

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def until_said(self, text: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None, f"ended early: {self.out}{self.err}"
            self.remember()
            return text in self.out

        until(said, f"{text!r} in the output", 2 * DEADLINE_S)

    def remember(self) -> None:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self._family.setdefault(child.pid, child)

    def interrupt(self, number: signal.Signals) -> int:
        """Signal the whole group, as Ctrl-C does; the exit code."""
        os.killpg(self.process.pid, number)
        return self.process.wait(DEADLINE_S)

    def left_behind(self) -> list[str]:
        """Processes and folders that are still there."""
        alive = [str(p) for p in self._family.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        return alive + [str(path) for path in Path("/tmp").glob(f"ssd-cluster-{self.process.pid}-*")]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return write_checkpoints(tmp_path_factory.mktemp("command"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kept(cache: Path) -> list[Path]:
    """What a start has left in the cache, but for the compiled kernels, which the next one uses."""
    return [path for path in cache.iterdir() if not path.name.startswith("cpu-kernels-")]


def refused(arguments: list[str], folder: Path, cache: Path) -> str:
    """The one line on stderr of a command that must fail before it starts anything."""
    command = Command(arguments, folder, cache)
    try:
        assert command.process.wait(DEADLINE_S) != 0
        assert "starting" not in command.out
        (line,) = command.err.splitlines()
        return line
    finally:
        command.close()


@pytest.fixture
def served(checkpoints: Checkpoints, tmp_path: Path, cache: Path) -> Iterator[Command]:
    command = Command([str(checkpoints.file)], tmp_path, cache)
    yield command
    command.close()


def test_it_serves_until_ctrl_c_and_leaves_nothing(
    served: Command, checkpoints: Checkpoints, tmp_path: Path, cache: Path
) -> None:
    served.until_said("curl -N")
    (curl,) = [line for line in served.out.splitlines() if "curl -N" in line]
    answer = subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert answer.stdout.endswith("data: [DONE]\n\n")
    assert '"role":"assistant"' in answer.stdout

    again = refused([str(checkpoints.file), "--port", str(free_port())], tmp_path, cache)
    assert f"already running (pid {served.process.pid})" in again
    beside = refused([str(checkpoints.file)], tmp_path, tmp_path / "other-cache")
    assert f"port {checkpoints.port} on 127.0.0.1 cannot be used" in beside

    served.remember()
    assert served.left_behind()
    assert served.interrupt(signal.SIGINT) == 0
    assert served.left_behind() == []
    assert served.err == ""
    assert kept(cache) == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", checkpoints.port))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{checkpoints.port}/health")


@pytest.mark.parametrize(
    ("moment", "number"), [("starting Ray", signal.SIGINT), ("loading", signal.SIGTERM), ("checking", signal.SIGINT)]
)
def test_an_interrupted_start_leaves_nothing(served: Command, cache: Path, moment: str, number: signal.Signals) -> None:
    served.until_said(moment)
    served.remember()
    assert served.interrupt(number) == 130
    assert served.left_behind() == []
    assert served.err == ""
    assert kept(cache) == []
    assert "serving" not in served.out


def test_a_start_that_fails_halfway_leaves_nothing(checkpoints: Checkpoints, tmp_path: Path, cache: Path) -> None:
    content = yaml.safe_load(checkpoints.file.read_text())
    content["applications"][1]["args"]["target"]["model"]["max_context"] = 100_000
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(content))
    command = Command([str(file)], tmp_path, cache)
    try:
        command.until_said("loading")
        assert command.process.wait(2 * DEADLINE_S) == 1
        (line,) = command.err.splitlines()
        assert "target does not start: max_context 100000 is more than the 4096 tokens" in line
        assert command.left_behind() == []
        assert kept(cache) == []
    finally:
        command.close()


def test_refusals_are_one_line(checkpoints: Checkpoints, tmp_path: Path, cache: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert refused([str(missing)], tmp_path, cache).endswith(f"{missing}: no such file")
    content = yaml.safe_load(checkpoints.file.read_text())
    content["applications"][0]["args"]["draft"]["model"]["cores"] = [4095]
    cores = tmp_path / "cores.yaml"
    cores.write_text(yaml.safe_dump(content))
    assert "too few cores: drafts: draft.model.cores wants 4095" in refused([str(cores)], tmp_path, cache)
    content = yaml.safe_load(checkpoints.file.read_text())
    content["applications"][0]["args"]["draft"]["model"]["path"] = str(tmp_path / "nowhere")
    model = tmp_path / "model.yaml"
    model.write_text(yaml.safe_dump(content))
    assert "nowhere" in refused([str(model)], tmp_path, cache)
    assert "port 70000" in refused([str(checkpoints.file), "--port", "70000"], tmp_path, cache)
