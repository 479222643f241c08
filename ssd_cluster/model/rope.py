"""Rotary position embedding: frequencies of the supported scalings, and the table of rotations."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """Parameters of the rotary embedding, names as in Hugging Face's ``rope_parameters``.

    ``dynamic`` changes frequencies only beyond the trained context, where no request is run: it equals ``default``.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians per position of each pair of dimensions: [D / 2] float32."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim)
    return plain


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long waves slowed by ``factor``, short ones kept, a blend between."""
    turns = rope.original_context * plain / (2 * math.pi)
    keep = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return plain * keep + plain / rope.factor * (1 - keep)


def _yarn(rope: Rope, plain: torch.Tensor, head_dim: int) -> torch.Tensor:
    """YaRN (arXiv 2309.00071, section 3.2): as ``_llama3``, but the blend is linear in the dimension's index."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    index = torch.arange(head_dim // 2, dtype=torch.float32)
    slow = ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / rope.factor * slow + plain * (1 - slow)


def rotation_table(rope: Rope, head_dim: int, n_positions: int, device: torch.device) -> torch.Tensor:
    """exp(i * position * frequency) times the attention factor: [n_positions, D / 2] complex64."""
    frequencies = inverse_frequencies(rope, head_dim)
    angles = torch.arange(n_positions, dtype=torch.float32)[:, None] * frequencies
    return torch.polar(torch.full_like(angles, rope.attention_factor), angles).to(device)


def interleave(head_dim: int) -> torch.Tensor:
    """Order that puts dimensions d and d + D/2, which rotate together, side by side: [D] int64.

    Hugging Face's weights keep the halves apart; with queries and keys both reordered, scores stay the same and a
    rotation is one complex multiplication.
    """
    return torch.arange(head_dim).view(2, head_dim // 2).T.reshape(-1)


def rotate(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate ``heads`` [T, N, D] (interleaved order) in place by ``rotation`` [T, 1, D / 2], computed in float32."""
    pairs = heads.float().view(*heads.shape[:-1], -1, 2)
    torch.view_as_complex(pairs).mul_(rotation)
    if heads.dtype != torch.float32:
        heads.copy_(pairs.flatten(-2))
