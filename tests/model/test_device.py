"""Devices, dtypes, and the cores and threads of a thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ssd_cluster.config import Device, DType
from ssd_cluster.errors import ConfigError
from ssd_cluster.model import device as module
from ssd_cluster.model.device import pin_thread, resolve_device, resolve_dtype

CPU = torch.device("cpu")


def in_thread(work: Callable[[], Any]) -> Any:
    """Result of ``work`` run in a thread of its own, so that its cores do not stay with the test's."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(timeout=10)
    return results[0]


def test_explicit_dtypes_are_taken_as_they_are() -> None:
    assert resolve_dtype(DType.FLOAT32, CPU) == torch.float32
    assert resolve_dtype(DType.BFLOAT16, CPU) == torch.bfloat16
    assert resolve_device(Device.CPU) == CPU


@pytest.mark.parametrize(
    ("flags", "dtype"),
    [
        ({"avx2", "avx512f"}, torch.float32),
        ({"avx512_bf16"}, torch.bfloat16),
        ({"amx_bf16"}, torch.bfloat16),
        ({"asimd", "bf16"}, torch.bfloat16),
        (set(), torch.float32),
    ],
)
def test_auto_follows_the_instruction_set(flags: set[str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cpu_flags", lambda: flags)
    assert resolve_dtype(DType.AUTO, CPU) == dtype


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind threads")
def test_pinning_binds_the_calling_thread_only() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)

    def work() -> set[int]:
        pin_thread((core,))
        return os.sched_getaffinity(0)

    assert in_thread(work) == {core}
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot bind threads")
@pytest.mark.parametrize("extra", [(), (0,)])
def test_missing_cores_are_named(extra: tuple[int, ...]) -> None:
    def work() -> ConfigError | None:
        try:
            pin_thread((*extra, 1000))
        except ConfigError as error:
            return error
        return None

    error = in_thread(work)
    assert error is not None
    assert error.param == "cores"
    assert "1000" in error.message
