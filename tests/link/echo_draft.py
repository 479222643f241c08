"""A draft process for tests: answers a Hello with a Welcome and every commit with a block; ends with its stdin."""

from __future__ import annotations

import sys
import threading

from support.links import block, welcome

from ssd_cluster.config import LinkSettings
from ssd_cluster.link.grpc_backend import Listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import BlockBatch, CommitBatch, Hello
from ssd_cluster.link.stream import Inbox


def main() -> None:
    inbox, stop = Inbox(), threading.Event()

    def end_with_parent() -> None:
        sys.stdin.read()
        stop.set()
        inbox.wake()

    threading.Thread(target=end_with_parent, daemon=True).start()
    with LinkLoop() as loop:
        listener = Listener("127.0.0.1", int(sys.argv[1]), inbox, LinkSettings(), loop)
        print(listener.endpoint, flush=True)
        while not stop.is_set():
            inbox.wait(1)
            for stream, message in inbox.drain():
                if isinstance(message, Hello):
                    stream.send(welcome())
                elif isinstance(message, CommitBatch):
                    stream.send(BlockBatch(tuple(block(n) for n, _ in enumerate(message.rows))))


if __name__ == "__main__":
    main()
