"""NumPy version for CPUs: the same words as the reference, computed in place, one row at a time.

uint64 lanes hold 32-bit words. The low half of a product is not masked where it is produced but after the xor that
uses it, which saves two passes per round; half of the first round works on scalars, because only the first counter
word differs between the blocks of a row. At V = 49152 the four buffers stay inside a core's L2 cache, so rows are not
batched.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
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
    round_keys,
    split_seed,
)

Words = npt.NDArray[np.uint64]

_MULTIPLIERS = np.array([[MULTIPLIER_1], [MULTIPLIER_0]], dtype=np.uint64)
_MASK = np.uint64(WORD_MASK)
_HALF = np.uint64(32)


def philox4x32(counters: npt.NDArray[np.uint64], keys: npt.NDArray[np.uint64]) -> Words:
    """Philox4x32-10 blocks.

    Args:
        counters: uint64 ``[N, 4]``, values in [0, 2**32).
        keys: uint64 ``[N, 2]``, values in [0, 2**32).

    Returns:
        uint64 ``[N, 4]``, values in [0, 2**32).
    """
    weyl = np.array([[WEYL_0], [WEYL_1]], dtype=np.uint64)
    schedule = [(keys.T + np.uint64(r) * weyl) & _MASK for r in range(ROUNDS)]
    return _rounds(counters.T[0::2].copy(), counters.T[1::2].copy(), schedule).T


def _rounds(even: Words, odd: Words, keys: Sequence[Words | tuple[int, int]]) -> Words:
    """Run ``keys`` rounds on blocks given as words (0, 2) ``[2, n]`` and (1, 3) ``[2, n]``; returns ``[4, n]``.

    One round: even' = high(product of the other even word) ^ odd ^ key, odd' = low(that product). Both buffers are
    overwritten. A key is one pair for all blocks, or ``[2, n]``. ``odd`` may carry garbage above bit 31 in the loop.
    """
    product, shifted = np.empty_like(even), np.empty_like(even)
    for key in keys:
        np.multiply(even[::-1], _MULTIPLIERS, out=product)
        np.right_shift(product, _HALF, out=shifted)
        np.bitwise_xor(shifted, odd, out=shifted)
        np.bitwise_xor(shifted, np.asarray(key, dtype=np.uint64).reshape(2, -1), out=shifted)
        np.bitwise_and(shifted, _MASK, out=even)
        odd, product = product, odd
    words = np.empty((4, even.shape[1]), dtype=np.uint64)
    words[0::2] = even
    np.bitwise_and(odd, _MASK, out=words[1::2])
    return words


def _blocks(seed: int, position: int, n_blocks: int, domain: int, round_word: int) -> Words:
    """Words of blocks 0..n_blocks-1 of one row, ``[4, n_blocks]``: word w of block j at ``[w, j]``."""
    keys = round_keys(*split_seed(seed))
    even, odd = np.empty((2, n_blocks), dtype=np.uint64), np.empty((2, n_blocks), dtype=np.uint64)
    index = np.arange(n_blocks, dtype=np.uint64)
    # Round 1 by hand: words 0 and 1 come out the same for every block.
    product_1 = MULTIPLIER_1 * domain
    even[0] = (product_1 >> 32) ^ position ^ keys[0][0]
    odd[0] = product_1 & WORD_MASK
    np.multiply(index, _MULTIPLIERS[1], out=odd[1])
    np.bitwise_xor(odd[1] >> _HALF, np.uint64(keys[0][1] ^ round_word), out=even[1])
    return _rounds(even, odd, keys[1:])


def noise_words(
    seeds: Sequence[int], positions: Sequence[int], vocabulary: int, domain: int, rounds: Sequence[int]
) -> Tensor:
    """Raw words of every token, int64 ``[N, V]``; see :func:`ssd_kernels.philox.noise_words`."""
    n_blocks = -(-vocabulary // 4)
    out = np.empty((len(positions), n_blocks, 4), dtype=np.int64)
    for row, seed, position, round_word in zip(out, seeds, positions, rounds, strict=True):
        row[:] = _blocks(seed, position, n_blocks, domain, round_word).T
    return torch.from_numpy(out.reshape(len(positions), 4 * n_blocks))[:, :vocabulary].contiguous()


def exponential_noise(
    seeds: Sequence[int], positions: Sequence[int], vocabulary: int, domain: int, rounds: Sequence[int]
) -> Tensor:
    """E of every token, float32 ``[N, V]``; see :func:`ssd_kernels.philox.exponential_noise`."""
    n_blocks = -(-vocabulary // 4)
    out = np.empty((len(positions), n_blocks, 4), dtype=np.float32)
    for row, seed, position, round_word in zip(out, seeds, positions, rounds, strict=True):
        fill_exponential(_blocks(seed, position, n_blocks, domain, round_word), row)
    return torch.from_numpy(out.reshape(len(positions), 4 * n_blocks))[:, :vocabulary].contiguous()


def fill_exponential(words: Words, out: npt.NDArray[np.float32]) -> None:
    """E of words ``[4, n]`` (overwritten) into ``out`` ``[n, 4]``, contiguous: the order of token ids.

    ``2 r + 1`` is exact in 64 bits and is rounded once, by the conversion to float32; the signed one is the faster.
    torch's logarithm is vectorised on every CPU, NumPy's on some.
    """
    np.left_shift(words, np.uint64(1), out=words)
    np.bitwise_or(words, np.uint64(1), out=words)
    out.T[:] = words.view(np.int64)
    uniform = torch.from_numpy(out).mul_(2.0**-33).clamp_(max=LARGEST_UNIFORM)
    uniform.neg_().log1p_().neg_()
