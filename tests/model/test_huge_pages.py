"""Large private memory moves to huge pages, and its content stays."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from ssd_cluster.model.huge_pages import HUGE_PAGE, use_huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def on_huge_pages() -> int:
    """Bytes of this process that the kernel holds in huge pages."""
    return sum(map(int, re.findall(r"^AnonHugePages:\s+(\d+) kB", Path("/proc/self/smaps").read_text(), re.M))) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="transparent huge pages are Linux's")
@pytest.mark.skipif(not SETTING.exists() or "[never]" in SETTING.read_text(), reason="huge pages are turned off here")
def test_memory_that_is_there_moves_and_keeps_its_content() -> None:
    values = torch.arange(8 * HUGE_PAGE, dtype=torch.int32)
    before = on_huge_pages()
    told = use_huge_pages()
    if told == 0:
        pytest.skip("this kernel cannot collapse memory on demand (Linux 6.1 can)")
    assert on_huge_pages() >= before
    assert on_huge_pages() >= values.nbytes // 2
    assert torch.equal(values, torch.arange(8 * HUGE_PAGE, dtype=torch.int32))


@pytest.mark.skipif(sys.platform == "linux", reason="elsewhere only")
def test_nothing_happens_on_other_systems() -> None:
    assert use_huge_pages() == 0
