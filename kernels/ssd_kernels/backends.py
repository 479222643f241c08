"""Which implementation of a kernel runs, and the one error for an implementation that cannot run here."""

from __future__ import annotations

import importlib
import importlib.util
from enum import StrEnum
from typing import Any

import torch


class Backend(StrEnum):
    """Who computes: torch (any device), Triton (CUDA; CPU tensors in its interpreter), FlashInfer (CUDA)."""

    TORCH = "torch"
    TRITON = "triton"
    FLASHINFER = "flashinfer"


class KernelUnavailable(RuntimeError):
    """The chosen implementation cannot run here; the message names what is missing. Raised before anything runs."""


def choose(backend: Backend | str | None, device: torch.device) -> Backend:
    """The backend that will run on ``device``; None: Triton on CUDA where it is installed, else torch.

    Raises:
        ValueError: there is no such backend.
        KernelUnavailable: it cannot run here.
    """
    if backend is None:
        if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
            return Backend.TRITON
        return Backend.TORCH
    chosen = Backend(backend)
    if chosen is Backend.TRITON:
        _require_triton(device)
    elif chosen is Backend.FLASHINFER:
        require_flashinfer(device)
    return chosen


def _require_triton(device: torch.device) -> None:
    if importlib.util.find_spec("triton") is None:
        raise KernelUnavailable("the package triton is not installed (extra cuda)")
    if device.type != "cuda" and not importlib.import_module("triton").knobs.runtime.interpret:
        raise KernelUnavailable(f"Triton kernels need a CUDA device, the tensors are on {device}")


def require_flashinfer(device: torch.device) -> Any:
    """The module ``flashinfer``. The bindings are written for flashinfer-python 0.7.4 (and fit 0.6.18).

    Raises:
        KernelUnavailable: the device is not CUDA, or the package is missing or does not import.
    """
    if device.type != "cuda":
        raise KernelUnavailable(f"FlashInfer kernels need a CUDA device, the tensors are on {device}")
    if importlib.util.find_spec("flashinfer") is None:
        raise KernelUnavailable("the package flashinfer-python is not installed (extra cuda)")
    try:
        return importlib.import_module("flashinfer")
    except Exception as error:  # its import builds and loads native code, which fails in many ways
        raise KernelUnavailable(f"the package flashinfer-python does not import: {error}") from error
