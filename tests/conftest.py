"""Settings of every test: one compute thread, no hub access."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from ssd_cluster.config import set_ray_environment

set_ray_environment()  # before any test module imports ray
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _pinning_stays_inside() -> Iterator[None]:
    """The thread that runs the tests keeps its cores: pinned once, everything started later would share one."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    yield
    after = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)
    assert after == before, "the test, or what it calls, has pinned the main thread"
