"""The compiled CPU kernels, for tests that need them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import pytest
import torch
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.cpu import CpuKernels

from ssd_cluster.config import cache_dir


@functools.cache
def compiled() -> CpuKernels:
    """Built in the user's cache, as models do it; skips the test where that cannot be done."""
    try:
        return CpuKernels(cache_dir())
    except KernelUnavailable as reason:
        pytest.skip(f"no compiled CPU kernels: {reason}")


@contextlib.contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """Compute with ``n`` threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
