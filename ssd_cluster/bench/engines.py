"""Engines in processes of their own, driven over pipes, so that threads, cores and the GIL do not mix."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from ssd_cluster.bench.handle import RunRecord, Workload
from ssd_cluster.bench.spec import EngineSpec
from ssd_cluster.errors import EngineStopped, StartupError
from ssd_cluster.types import Mode

_END = "end"


class Worker:
    """A process that answers workloads; it ends when this end of its pipe closes, however that happens.

    Args:
        module: what the process runs, see ``ssd_cluster.bench.worker``.
        name: for messages.
        start: what it is to build.
        start_s: longest time until it is ready (loading weights).
        silence_s: longest time between two lines of a working process; it writes one about every second.

    Attributes:
        info: what it said of itself.

    Raises:
        StartupError: it did not become ready.
    """

    def __init__(self, module: str, name: str, start: Any, *, start_s: float = 300.0, silence_s: float = 180.0) -> None:
        self._silence_s = silence_s
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        threading.Thread(target=self._read, name=f"bench-{name}", daemon=True).start()
        try:
            self._send({"start": start})
            self.info: dict[str, Any] = self._receive("ready", start_s)["info"]
        except EngineStopped as error:
            self.close()
            raise StartupError(f"{name}: {error.message}") from error
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def run(self, workload: Workload) -> RunRecord:
        """See ``EngineHandle``."""
        self._send({"run": workload.model_dump(mode="json")})
        return RunRecord.model_validate(self._receive("record", self._silence_s)["record"])

    def close(self, timeout_s: float = 20.0) -> None:
        """Let the process stop its engine and draft; kill it if it does not."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)

    def _send(self, message: dict[str, Any]) -> None:
        stdin = self._process.stdin
        try:
            if stdin is None:
                raise BrokenPipeError
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise EngineStopped("the worker process has ended") from error

    def _receive(self, wanted: str, silence_s: float) -> dict[str, Any]:
        """The next message with the key ``wanted``; each line before it renews the deadline.

        Raises:
            EngineStopped: the worker reports an error, has ended, or is silent for too long.
        """
        while True:
            try:
                message = self._lines.get(timeout=silence_s)
            except queue.Empty:
                raise EngineStopped(f"the worker process is silent for {silence_s:.0f} s") from None
            if wanted in message:
                return message
            if "error" in message:
                raise EngineStopped(str(message["error"]))
            if _END in message:
                raise EngineStopped(f"the worker process has ended with code {message[_END]}")

    def _read(self) -> None:
        """Reader thread: worker's lines into the queue, its exit code last."""
        stdout: IO[str] | None = self._process.stdout
        if stdout is not None:
            for line in stdout:
                self._lines.put(json.loads(line))
        self._lines.put({_END: self._process.wait()})


class WorkerEngine(Worker):
    """One of our engines in a process of its own.

    Args:
        spec: the engine to build.
        name: what its results are called; None: its mode.

    Raises:
        StartupError: it did not become ready.
    """

    def __init__(self, spec: EngineSpec, name: str | None = None) -> None:
        self._spec = spec
        self.name = name if name is not None else spec.mode.value
        super().__init__("ssd_cluster.bench.worker", f"mode {self.mode.value}", spec.model_dump(mode="json"))

    @property
    def mode(self) -> Mode:
        return self._spec.mode

    @property
    def cores(self) -> dict[str, tuple[int, ...] | None]:
        """CPU cores of target and draft; None: not bound."""
        draft = self._spec.draft
        cores = {"target": self._spec.target.model.cores}
        return cores if draft is None else cores | {"draft": draft.model.cores}


def start_engines(
    specs: Sequence[EngineSpec], progress: Callable[[str], None], names: Sequence[str] | None = None
) -> list[WorkerEngine]:
    """Start one worker per spec, one after the other; on failure those already running are closed.

    ``names``: of the engines; None: their modes.
    """
    engines: list[WorkerEngine] = []
    try:
        for spec, name in zip(specs, names or [spec.mode.value for spec in specs], strict=True):
            progress(f"starting {name} ({spec.target.name})")
            engines.append(WorkerEngine(spec, name))
    except BaseException:
        for engine in engines:
            engine.close()
        raise
    return engines
