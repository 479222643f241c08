"""A draft replica in a child process, without Ray."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

from ssd_cluster.config import DraftSettings
from ssd_cluster.errors import StartupError


class DraftProcess:
    """``python -m ssd_cluster.draft.process``, started and waited for. It cannot outlive this process.

    Args:
        settings: of the draft; model, cores and port included.
        start_s: longest time until it listens.

    Attributes:
        endpoint: ``host:port`` to connect to.
        pid: process id.

    Raises:
        StartupError: it ended or reported an error instead, or the deadline passed.
    """

    def __init__(self, settings: DraftSettings, start_s: float = 120.0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ssd_cluster.draft.process", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        try:
            self.endpoint = self._start(settings, start_s)
        except BaseException:
            self.close()
            raise
        self.pid = self._process.pid

    def _start(self, settings: DraftSettings, start_s: float) -> str:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise StartupError("the draft process has no pipes")
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_forward_line, args=(stdout, lines), name="draft-process", daemon=True).start()
        with suppress(BrokenPipeError):
            stdin.write(settings.model_dump_json() + "\n")
            stdin.flush()
        try:
            line = lines.get(timeout=start_s)
        except queue.Empty:
            raise StartupError(f"the draft process was not ready within {start_s:.0f} s") from None
        said = json.loads(line) if line else {"error": "it ended without a word; its log is above"}
        if "endpoint" not in said:
            raise StartupError(f"the draft process did not start: {said.get('error')}")
        return str(said["endpoint"])

    def close(self, timeout_s: float = 10.0) -> None:
        """End it by closing its input; kill it if that does not help. Safe to call twice."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)


def _forward_line(stdout: IO[str], lines: queue.SimpleQueue[str]) -> None:
    """Reader thread: the first line, "" if there is none; the rest is read away so that the pipe never fills."""
    lines.put(stdout.readline())
    for _ in stdout:
        continue
