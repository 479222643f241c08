"""Every test of the link leaves no thread behind; a real loop and listener for those that need gRPC."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from ssd_cluster.config import LinkSettings
from ssd_cluster.link.grpc_backend import Listener
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + 10
    while extra := set(threading.enumerate()) - before:
        assert time.monotonic() < deadline, f"threads left behind: {[thread.name for thread in extra]}"
        gc.collect()
        time.sleep(0.02)


@pytest.fixture
def loop() -> Iterator[LinkLoop]:
    with LinkLoop() as running:
        yield running


@pytest.fixture
def target_inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def draft_inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def listener(loop: LinkLoop, draft_inbox: Inbox) -> Iterator[Listener]:
    made = Listener("127.0.0.1", 0, draft_inbox, LinkSettings(), loop)
    yield made
    made.close()
