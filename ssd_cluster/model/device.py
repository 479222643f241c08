"""Where and in which number format a model runs: device, dtype, and the threads and cores of the calling thread."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from ssd_cluster.config import Device, DType
from ssd_cluster.errors import ConfigError


def resolve_device(device: Device) -> torch.device:
    """The torch device of a setting.

    Raises:
        ConfigError: CUDA is asked for and there is none.
    """
    if device is Device.CUDA and not torch.cuda.is_available():
        raise ConfigError("device cuda: no CUDA device is visible to this process; use device cpu", param="device")
    return torch.device(device.value)


def resolve_dtype(dtype: DType, device: torch.device) -> torch.dtype:
    """The dtype of weights and KV cache; ``AUTO`` is bfloat16 where the hardware multiplies it natively."""
    if dtype is DType.AUTO:
        return torch.bfloat16 if has_native_bfloat16(device) else torch.float32
    return torch.bfloat16 if dtype is DType.BFLOAT16 else torch.float32


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether the device has bfloat16 matrix instructions (CPU: AVX512-BF16, AMX or Arm BF16)."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(_cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


def _cpu_flags() -> set[str]:
    """Instruction sets that the kernel lists for the first CPU; empty where there is no such list."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        return set()
    return set(line.split())


def pin_thread(cores: Sequence[int]) -> None:
    """Bind the calling thread, and the threads it starts from now on, to these cores.

    Raises:
        ConfigError: a core does not exist or is not given to this process.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("cores: this system cannot bind threads to cores; leave cores out", param="cores")
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        available = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise ConfigError(f"cores {list(cores)} cannot be used (available: {available})", param="cores") from error
    missing = set(cores) - os.sched_getaffinity(0)
    if missing:
        raise ConfigError(f"cores {sorted(missing)} do not exist here or are not given to this process", param="cores")


def set_threads(n: int) -> None:
    """Compute threads of the calling thread's tensor operations."""
    if torch.get_num_threads() != n:
        torch.set_num_threads(n)
