"""Torch reference: plain int64 arithmetic, any device, one line per step of the algorithm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_kernels.philox.layout import (
    LARGEST_UNIFORM,
    MULTIPLIER_0,
    MULTIPLIER_1,
    ROUNDS,
    WEYL_0,
    WEYL_1,
    WORD_MASK,
    split_seed,
)


def _multiply(multiplier: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """(high, low) 32-bit halves of the 64-bit product; int64 wraps, the bits are the unsigned product's."""
    product = word * multiplier
    return (product >> 32) & WORD_MASK, product & WORD_MASK


def philox4x32(counters: Tensor, keys: Tensor) -> Tensor:
    """Philox4x32-10 blocks.

    Args:
        counters: int64 ``[..., 4]``, values in [0, 2**32).
        keys: int64 ``[..., 2]``, values in [0, 2**32), broadcast against ``counters``.

    Returns:
        int64 ``[..., 4]``, values in [0, 2**32).
    """
    c0, c1, c2, c3 = counters.unbind(-1)
    k0, k1 = keys.unbind(-1)
    for r in range(ROUNDS):
        if r:
            k0 = (k0 + WEYL_0) & WORD_MASK
            k1 = (k1 + WEYL_1) & WORD_MASK
        high0, low0 = _multiply(MULTIPLIER_0, c0)
        high1, low1 = _multiply(MULTIPLIER_1, c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return torch.stack((c0, c1, c2, c3), dim=-1)


def noise_words(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocabulary: int,
    domain: int,
    rounds: Sequence[int],
    device: torch.device,
) -> Tensor:
    """Raw words of every token, int64 ``[N, V]``; see :func:`ssd_kernels.philox.noise_words`."""
    n_blocks = -(-vocabulary // 4)
    keys = torch.tensor([split_seed(s) for s in seeds], dtype=torch.int64, device=device).view(-1, 1, 2)
    counters = torch.zeros(len(positions), n_blocks, 4, dtype=torch.int64, device=device)
    counters[..., 0] = torch.arange(n_blocks, device=device)
    counters[..., 1] = torch.tensor(list(positions), dtype=torch.int64, device=device).view(-1, 1)
    counters[..., 2] = domain
    counters[..., 3] = torch.tensor(list(rounds), dtype=torch.int64, device=device).view(-1, 1)
    return philox4x32(counters, keys).flatten(1)[:, :vocabulary]


def words_to_uniform(words: Tensor) -> Tensor:
    """u = min(float32((r + 0.5) 2**-32), 1 - 2**-24) of words r; float32, shape of ``words``, in (0, 1).

    ``2 r + 1`` is exact in int64 and is rounded once, by the conversion to float32; the scaling is exact.
    """
    return (words * 2 + 1).to(torch.float32).mul_(2.0**-33).clamp_(max=LARGEST_UNIFORM)


def words_to_exponential(words: Tensor) -> Tensor:
    """E = -log1p(-u) of :func:`words_to_uniform`; float32, shape of ``words``."""
    return words_to_uniform(words).neg_().log1p_().neg_()
