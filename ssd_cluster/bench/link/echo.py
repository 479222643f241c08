"""A draft without a model: answers every commit at once. On a thread, or in a process of its own over gRPC.

python -m ssd_cluster.bench.link.echo    (settings as a line of standard input; prints {"endpoint"})
"""

from __future__ import annotations

import json
import logging
import sys
import threading

import torch

from ssd_cluster.bench.link.shape import Shape
from ssd_cluster.config import LinkSettings, Settings
from ssd_cluster.draft.post import LawPost
from ssd_cluster.link.grpc_backend import Listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import Attach, CommitBatch, Hello
from ssd_cluster.link.stream import Inbox
from ssd_cluster.model.device import pin_thread

_IDLE_S = 0.25


class EchoSettings(Settings):
    """Of an echo in a process of its own."""

    shape: Shape
    link: LinkSettings
    cores: tuple[int, ...] | None = None


class Echo:
    """Serves one inbox until ``stop`` is set.

    Args:
        shape: of its answers.
        link: how laws travel.
        inbox: of the draft's side.
    """

    def __init__(self, shape: Shape, link: LinkSettings, inbox: Inbox) -> None:
        self.stop = threading.Event()
        self._welcome, self._blocks, self._laws = shape.welcome(), shape.blocks(), shape.laws()
        self._post = LawPost(link, torch.device("cpu"))
        self._inbox = inbox

    def run(self) -> None:
        """Answer; for the thread that is the draft."""
        while not self.stop.is_set():
            self._inbox.wait(_IDLE_S)
            for stream, message in self._inbox.drain():
                if isinstance(message, CommitBatch):
                    stream.send(self._blocks)
                    for law in self._laws:
                        self._post.send(stream, law)
                elif isinstance(message, Hello):
                    stream.send(self._welcome)
                elif isinstance(message, Attach):
                    self._post.attach(stream, message, trusted=True)
        self._post.close()


def main() -> int:
    """Serve until standard input ends."""
    logging.basicConfig(level=logging.WARNING)
    settings = EchoSettings.model_validate_json(sys.stdin.readline())
    if settings.cores is not None:
        pin_thread(settings.cores)
    inbox = Inbox()
    echo = Echo(settings.shape, settings.link, inbox)

    def end_with_parent() -> None:
        sys.stdin.read()
        echo.stop.set()
        inbox.wake()

    threading.Thread(target=end_with_parent, name="stdin", daemon=True).start()
    with LinkLoop("bench-echo") as loop:
        listener = Listener("127.0.0.1", 0, inbox, settings.link, loop)
        sys.stdout.write(json.dumps({"endpoint": listener.endpoint}) + "\n")
        sys.stdout.flush()
        echo.run()
        listener.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
