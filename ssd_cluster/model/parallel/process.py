"""A rank in a process of its own: ``python -m ssd_cluster.model.parallel.process``, started by ``LocalRanks``.

Reads its order, a line of JSON, from standard input, and ends when that closes: it never outlives its parent.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

from ssd_cluster.errors import SsdClusterError
from ssd_cluster.model.device import pin_thread
from ssd_cluster.model.parallel.launcher import RankOrder
from ssd_cluster.model.parallel.worker import serve_rank

log = logging.getLogger(__name__)

_GRACE_S = 5.0


def main() -> int:
    """Serve until rank 0 says stop or our input closes; exit code 0, or 1 after an error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; it closes our input
    order = RankOrder.model_validate_json(sys.stdin.readline())
    if order.model.cores is not None:
        pin_thread(order.model.cores)  # before any other thread exists: they all inherit it
    closed = threading.Event()
    threading.Thread(target=_end_with_input, args=(sys.stdin.fileno(), closed), name="stdin", daemon=True).start()
    try:
        serve_rank(order, order.host, lambda: "the parent process has ended" if closed.is_set() else None)
    except SsdClusterError as error:
        if not closed.is_set():
            log.error("rank_failed rank=%d error=%s", order.rank, error.message)
        return 1
    return 0


def _end_with_input(descriptor: int, closed: threading.Event) -> None:
    """Not through ``sys.stdin``: a thread that waits there holds a lock that the interpreter wants at exit."""
    while os.read(descriptor, 4096):
        continue
    closed.set()
    threading.Event().wait(_GRACE_S)
    os._exit(1)  # it hangs in a forward


if __name__ == "__main__":
    sys.exit(main())
