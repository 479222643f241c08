"""Weights on huge pages: a decoding step reads all of them once, and small pages cost a good part of that time."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Iterator

HUGE_PAGE = 2 * 1024 * 1024
_MADV_HUGEPAGE = 14
_MADV_COLLAPSE = 25  # Linux 6.1

log = logging.getLogger(__name__)


def use_huge_pages() -> int:
    """Ask the kernel to hold this process's large private memory in huge pages, what is there now at once.

    Called after weights and KV memory have been allocated. Where transparent huge pages are off, or the system is not
    Linux, nothing happens.

    Returns:
        Bytes that are on huge pages because of this call, or were already.
    """
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    collapsed = 0
    for start, stop in _large_private_ranges():
        if libc.madvise(start, stop - start, _MADV_HUGEPAGE):
            continue
        if not libc.madvise(start, stop - start, _MADV_COLLAPSE):
            collapsed += stop - start
    log.debug("%d MB of memory are on huge pages", collapsed >> 20)
    return collapsed


def _large_private_ranges() -> Iterator[tuple[int, int]]:
    """Anonymous writable mappings, cut to whole huge pages: (first address, address behind the last)."""
    with open("/proc/self/maps", encoding="utf-8") as lines:
        mappings = lines.read().splitlines()
    for mapping in mappings:
        addresses, permissions, _offset, _device, inode, *name = mapping.split(maxsplit=5)
        if inode != "0" or permissions != "rw-p" or (name and name[0] != "[heap]"):
            continue
        first, behind = (int(address, 16) for address in addresses.split("-"))
        start, stop = -(-first // HUGE_PAGE) * HUGE_PAGE, behind // HUGE_PAGE * HUGE_PAGE
        if start < stop:
            yield start, stop
