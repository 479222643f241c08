"""A draft replica in a process of its own, without Ray: what `generate --link grpc`, benchmarks and tests start.

    python -m ssd_cluster.draft.process SETTINGS    (DraftSettings as JSON; "-" reads one line of standard input)

Prints one JSON line, {"endpoint", "pid"} once it listens or {"error", "code"}, and ends when its standard input closes,
so it never outlives its parent.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence

from pydantic import ValidationError

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.engine import load_draft
from ssd_cluster.errors import ConfigError, SsdClusterError
from ssd_cluster.link.grpc_backend import Listener, check_listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox
from ssd_cluster.model.device import pin_thread

log = logging.getLogger(__name__)

_HEALTH_S = 0.5


def main(arguments: Sequence[str]) -> int:
    """Serve until standard input ends or SIGTERM; exit code 0, or 1 if the draft could not start or has failed."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; it closes our input
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        settings = _settings(arguments)
        if settings.model.cores is not None:
            pin_thread(settings.model.cores)  # before any other thread exists: they all inherit it
        threading.Thread(target=_end_with_input, args=(sys.stdin.fileno(), stop), name="stdin", daemon=True).start()
        failed = _serve(settings, stop)
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


def _serve(settings: DraftSettings, stop: threading.Event) -> bool:
    """Load, listen, announce and serve until the stop; True if the engine failed before it.

    Raises:
        CheckpointError, ConfigError, EngineStopped, LinkError: the model cannot be loaded or run, or the port not used.
    """
    check_listener(settings.host, settings.link)
    inbox = Inbox()
    engine = load_draft(settings, inbox)
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
        _say({"endpoint": listener.endpoint_at("127.0.0.1"), "pid": os.getpid()})
        while engine.healthy() and not stop.wait(_HEALTH_S):
            continue
        failed = not engine.healthy()
        listener.close()
        engine.stop()
    return failed


def _end_with_input(descriptor: int, stop: threading.Event) -> None:
    """Not through ``sys.stdin``: a thread that waits there holds a lock that the interpreter wants at exit."""
    while os.read(descriptor, 4096):
        continue
    stop.set()


def _say(message: dict[str, str | int]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
