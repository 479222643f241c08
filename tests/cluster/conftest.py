"""One local Ray for all cluster tests, started by the project's own code."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.live_cluster import DEADLINE_S, Live, Reference, write_checkpoints

from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.serve.local import running
from ssd_cluster.serve.signals import StopSignals


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    checkpoints = write_checkpoints(tmp_path_factory.mktemp("served"))
    file = read_serve_file(checkpoints.file)
    deadline = time.monotonic() + 2 * DEADLINE_S
    with StopSignals() as signals, running(file, file.http_options, signals, deadline, spare_cpus=6):
        yield Live(checkpoints)


@pytest.fixture(scope="session")
def reference(live: Live) -> Iterator[Reference]:
    engine = Reference(live.checkpoints.target)
    yield engine
    engine.close()
