"""The process of a peer in transformers; speaks as ``ssd_cluster.bench.worker`` does."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ssd_cluster.bench.handle import RunRecord, Workload
from ssd_cluster.bench.peers.settings import PeerSettings
from ssd_cluster.bench.worker import Built, serve_parent
from ssd_cluster.model.device import pin_thread

_EVERY_S = 1.0


@contextmanager
def _build(start: Any, progress: Callable[[int], None]) -> Iterator[Built]:
    settings = PeerSettings.model_validate(start)
    if settings.cores is not None:
        pin_thread(settings.cores)  # before torch starts its threads: they inherit it
    import torch
    import transformers

    from ssd_cluster.bench.peers.transformers_model import TransformersPeer

    torch.set_num_threads(len(settings.cores or (0,)))
    peer = TransformersPeer(settings, _slowly(progress))
    info = {"torch": torch.__version__, "transformers": transformers.__version__}

    def run(workload: Workload) -> RunRecord:
        return peer.run(workload)

    yield Built(info, run)


def _slowly(progress: Callable[[int], None]) -> Callable[[int], None]:
    """At most one line a second."""
    due = 0.0

    def tell(tokens: int) -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            due = now + _EVERY_S
            progress(tokens)

    return tell


if __name__ == "__main__":
    sys.exit(serve_parent(_build))
