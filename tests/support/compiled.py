"""The compiled CPU kernels, for tests that need them."""

from __future__ import annotations

import functools

import pytest
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
