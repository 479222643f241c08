"""A draft replica in a process of its own, without Ray: what `generate --link grpc`, benchmarks and tests start.

    python -m ssd_cluster.draft.process SETTINGS    (DraftSettings as JSON; "-" reads one line of standard input)

Prints one JSON line, {"endpoint", "pid"} once it listens or {"error", "code"}, and ends when its standard input closes,
so it never outlives its parent. Once it listens, every further line of standard input is answered by one with what it
has done: {"at" (monotonic seconds), "snapshot", "metrics" (samples by name and labels)}.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.engine import DraftEngine, load_draft
from ssd_cluster.errors import ConfigError, SsdClusterError
from ssd_cluster.link.grpc_backend import Listener, check_listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox
from ssd_cluster.model.device import pin_thread

log = logging.getLogger(__name__)

Loader = Callable[[DraftSettings, Inbox], DraftEngine]

_HEALTH_S = 0.5


def main(arguments: Sequence[str], load: Loader = load_draft) -> int:
    """Serve what ``load`` makes until standard input ends or SIGTERM; exit code 0, or 1 if it cannot start or fails."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; it closes our input
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        settings = _settings(arguments)
        if settings.model.cores is not None:
            pin_thread(settings.model.cores)  # before any other thread exists: they all inherit it
        parent = _Parent(sys.stdin.fileno(), stop)
        threading.Thread(target=parent.heed, name="stdin", daemon=True).start()
        failed = _serve(settings, stop, parent, load)
    except SsdClusterError as error:
        _say({"error": error.message, "code": error.code})
        return 1
    return int(failed)


def _settings(arguments: Sequence[str]) -> DraftSettings:
    if len(arguments) != 1:
        raise ConfigError("give the draft's settings as one JSON argument, or - to read a line of standard input")
    text = sys.stdin.readline() if arguments[0] == "-" else arguments[0]
    try:
        return DraftSettings.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(f"draft settings: {error}") from error


def _serve(settings: DraftSettings, stop: threading.Event, parent: _Parent, load: Loader) -> bool:
    """Load, listen, announce and serve until the stop; True if the engine failed before it.

    Raises:
        CheckpointError, ConfigError, EngineStopped, LinkError: the model cannot be loaded or run, or the port not used.
    """
    check_listener(settings.host, settings.link)
    inbox = Inbox()
    engine = load(settings, inbox)
    engine.start()
    with LinkLoop("draft-link") as loop:
        listener = Listener(
            settings.host,
            settings.port,
            inbox,
            settings.link,
            loop,
            max_streams=settings.max_streams,
            refused=lambda reason: engine.metrics.refused_streams.labels(reason).inc(),
        )
        parent.answer = lambda: _say(report(engine))
        _say({"endpoint": listener.endpoint_at("127.0.0.1"), "pid": os.getpid()})
        while engine.healthy() and not stop.wait(_HEALTH_S):
            continue
        failed = not engine.healthy()
        listener.close()
        engine.stop()
    return failed


def report(engine: DraftEngine) -> dict[str, Any]:
    """What a draft has done since it started, and its state now."""
    samples = (sample for family in engine.metrics.registry.collect() for sample in family.samples)
    metrics = {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sorted(sample.labels.items())): sample.value
        for sample in samples
        if not sample.name.endswith("_created")
    }
    return {"at": time.monotonic(), "snapshot": asdict(engine.snapshot()), "metrics": metrics}


class _Parent:
    """Who started this process: its end is ours, and each of its lines is a question once ``answer`` is set."""

    def __init__(self, descriptor: int, stop: threading.Event) -> None:
        self.answer: Callable[[], None] | None = None
        self._descriptor = descriptor
        self._stop = stop

    def heed(self) -> None:
        """Not through ``sys.stdin``: a thread that waits there holds a lock that the interpreter wants at exit."""
        while text := os.read(self._descriptor, 4096):
            for _ in range(text.count(b"\n")):
                if self.answer is not None:
                    self.answer()
        self._stop.set()


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
