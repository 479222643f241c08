"""Llama 3 RoPE scaling from the per-frequency factors that GGUF files store instead of its parameters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ssd_cluster.errors import CheckpointError

_TOLERANCE = 1e-3


def llama3_scaling(factors: np.ndarray[Any, np.dtype[np.float32]], theta: float, where: str) -> dict[str, Any]:
    """Parameters of Hugging Face's "llama3" scaling that give these factors.

    The rule divides frequency i (wavelength w) by ``factor`` for long wavelengths, by 1 for short ones, and between
    them 1/f = (1 - s)/factor + s with s = (L/w - low)/(high - low). s is linear in 1/w, so a line through the factors
    between gives the parameters; only L : low : high matters, and low = 1 is chosen.

    Args:
        factors: [head_dim / 2], each >= 1.
        theta: base of the rotary embedding.
        where: file name for the error message.

    Raises:
        CheckpointError: the factors do not follow that rule.
    """
    count = len(factors)
    exact = factors.astype(np.float64)
    inverse_wavelength = theta ** (-np.arange(count) / count) / (2 * math.pi)
    factor = float(exact.max())
    between = (exact > 1 + _TOLERANCE) & (exact < factor * (1 - _TOLERANCE))
    refusal = CheckpointError(
        f"{where}: the stored RoPE frequency factors do not follow Llama 3's rule; use its safetensors checkpoint"
    )
    if factor <= 1 + _TOLERANCE or between.sum() < 2:
        raise refusal
    smooth = (1 / exact[between] - 1 / factor) / (1 - 1 / factor)
    slope, offset = np.polyfit(inverse_wavelength[between], smooth, 1)
    if offset >= 0:
        raise refusal
    high = _tidy(1 - 1 / offset)
    original = round(slope * (high - 1))
    scaling = {
        "rope_type": "llama3",
        "factor": _tidy(factor),
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    if not np.allclose(llama3_factors(scaling, theta, count), exact, rtol=_TOLERANCE):
        raise refusal
    return scaling


def llama3_factors(scaling: dict[str, Any], theta: float, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The rule itself: [count] divisors of the rotary frequencies."""
    inverse_wavelength = theta ** (-np.arange(count) / count) / (2 * math.pi)
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (scaling["original_max_position_embeddings"] * inverse_wavelength - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), dtype=np.float64)


def _tidy(value: float) -> float:
    """The nearest number with three decimals when that is what float32 rounding came from."""
    rounded = round(value, 3)
    return rounded if abs(value - rounded) <= _TOLERANCE * abs(value) else value
