"""A draft process for tests: sends a dense law for every commit; one with counter 99 is announced and held back."""

from __future__ import annotations

import sys
import threading

from torch import Tensor

from ssd_cluster.draft.post import LawPost
from ssd_cluster.link.grpc_backend import Listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import Attach, CommitBatch, Hello, StreamClosed
from ssd_cluster.link.stream import Inbox
from ssd_cluster.link.tensor.rows import LawRows
from support.law_links import CPU, dense_law, link_settings
from support.links import welcome

HELD = 99
write = LawRows.write


def main() -> None:
    rows, vocabulary = int(sys.argv[1]), int(sys.argv[2])
    inbox, stop, held = Inbox(), threading.Event(), threading.Event()

    def read_input() -> None:
        for _ in sys.stdin:
            held.set()
        stop.set()
        held.set()
        inbox.wake()

    def hold(law: LawRows, buffer: Tensor, transfer: int) -> None:
        if law.fingerprint == HELD:
            held.wait()
            held.clear()
        write(law, buffer, transfer)

    LawRows.write = hold  # type: ignore[method-assign]
    threading.Thread(target=read_input, daemon=True).start()
    settings = link_settings()
    post = LawPost(settings, CPU)
    with LinkLoop() as loop:
        print(Listener("127.0.0.1", 0, inbox, settings, loop).endpoint, flush=True)
        while not stop.is_set():
            inbox.wait(1)
            for stream, message in inbox.drain():
                if isinstance(message, Hello):
                    stream.send(welcome(vocabulary=vocabulary))
                elif isinstance(message, Attach):
                    post.attach(stream, message, trusted=True)
                elif isinstance(message, StreamClosed):
                    post.forget(stream)
                elif isinstance(message, CommitBatch):
                    for row in message.rows:
                        post.send(stream, dense_law(row.counter, rows, vocabulary))
        post.close()


if __name__ == "__main__":
    main()
