"""Starts a draft process and ends it: see ``ssd_cluster.draft.process``."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any

from ssd_cluster.config import DraftSettings, child_environment
from ssd_cluster.errors import EngineStopped, StartupError

_MODULE = "ssd_cluster.draft.process"


class DraftProcess:
    """A draft in a child process with its own cores and threads, listening on gRPC.

    Also a context manager. The child ends when this process does, however that happens.

    Args:
        settings: of the draft; port 0 takes a free one.
        start_timeout_s: longest wait until it listens; loading the model is part of it.
        stderr: where its log goes; None: our own.
        module: what the child runs; ``arguments``: of it, behind the settings.

    Attributes:
        endpoint: host:port for ``connect``.
        pid: of the child.

    Raises:
        StartupError: it did not come up; the message is the child's own where it said why.
    """

    def __init__(
        self,
        settings: DraftSettings,
        *,
        start_timeout_s: float = 120.0,
        stderr: IO[Any] | int | None = None,
        module: str = _MODULE,
        arguments: Sequence[str] = (),
    ) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", module, settings.model_dump_json(), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=child_environment(settings.model.compute_threads),
            text=True,
        )
        self.pid = self._child.pid
        try:
            self.endpoint = self._await_endpoint(start_timeout_s)
        except BaseException:
            self.kill()
            raise

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self._child.poll() is None

    def report(self, timeout_s: float = 10.0) -> dict[str, Any]:
        """What the draft has done: {"at" (monotonic seconds), "snapshot", "metrics"}; by one thread at a time.

        Raises:
            EngineStopped: the child has ended or does not answer in time; it is then killed.
        """
        try:
            if self._child.stdin is None:
                raise BrokenPipeError
            self._child.stdin.write("\n")
            self._child.stdin.flush()
            answer: dict[str, Any] = json.loads(self._line(timeout_s) or "")
        except (BrokenPipeError, ValueError):
            self.kill()
            raise EngineStopped(f"the draft process does not answer (code {self._child.poll()})") from None
        return answer

    def kill(self, timeout_s: float = 5.0) -> None:
        """SIGKILL, as in a crash; waits until the child is gone."""
        self._child.kill()
        self._wait(timeout_s)

    def close(self, timeout_s: float = 10.0) -> int:
        """Let the child end in order, kill it at the deadline; returns its exit code. Safe to call twice."""
        if self._child.stdin is not None and not self._child.stdin.closed:
            self._child.stdin.close()
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float) -> int:
        code = self._child.wait(timeout_s)
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        return code

    def _await_endpoint(self, timeout_s: float) -> str:
        line = self._line(timeout_s)
        if line is None:
            raise StartupError(f"the draft process did not listen within {timeout_s:g} s")
        try:
            answer = json.loads(line)
            return str(answer["endpoint"])
        except KeyError:
            raise StartupError(f"the draft process did not start: {answer.get('error', line)}") from None
        except ValueError:
            raise StartupError(f"the draft process ended with code {self._child.poll()} before it listened") from None

    def _line(self, timeout_s: float) -> str | None:
        """The child's answer, None after the timeout; reading a pipe has no deadline of its own, so a thread reads."""
        lines: list[str] = []

        def read() -> None:
            if self._child.stdout is not None:
                lines.append(self._child.stdout.readline())

        reader = threading.Thread(target=read, name="draft-answer", daemon=True)
        reader.start()
        reader.join(timeout_s)
        return lines[0] if lines else None

    def __enter__(self) -> DraftProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
