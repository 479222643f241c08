"""Triton version for CUDA; with ``TRITON_INTERPRET=1`` set before import it runs on CPU tensors, for tests.

Import it lazily: it needs the package triton. Functions under ``triton.jit`` carry no annotations, which the compiler
would try to resolve.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssd_kernels.philox.layout import split_seed

BLOCK = 256
"""Philox blocks (four words each) per program."""


@triton.jit
def philox_rounds(c0, c1, c2, c3, k0, k1):
    """Ten rounds on uint32 blocks; returns the four words."""
    multiplier_0 = tl.full((1,), 0xD2511F53, tl.uint32)
    multiplier_1 = tl.full((1,), 0xCD9E8D57, tl.uint32)
    weyl_0 = tl.full((1,), 0x9E3779B9, tl.uint32)
    weyl_1 = tl.full((1,), 0xBB67AE85, tl.uint32)
    for _ in tl.static_range(10):
        high0 = tl.umulhi(multiplier_0, c0)
        high1 = tl.umulhi(multiplier_1, c2)
        low0 = multiplier_0 * c0
        low1 = multiplier_1 * c2
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + weyl_0
        k1 = k1 + weyl_1
    return c0, c1, c2, c3


@triton.jit
def exponential(words):
    """E = -log1p(-u) of uint32 words.

    A float32 ``1 - u`` would lose the small u, which win races: below 2**-8 four terms of the series are exact to
    float32, above it the logarithm is taken in float64.
    """
    uniform = ((words.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)).to(tl.float32)
    uniform = tl.minimum(uniform, 1.0 - 1.0 / 16777216.0)
    series = uniform * (1.0 + uniform * (1.0 / 2.0 + uniform * (1.0 / 3.0 + uniform * (1.0 / 4.0))))
    return tl.where(uniform < 1.0 / 256.0, series, (-tl.log(1.0 - uniform.to(tl.float64))).to(tl.float32))


@triton.jit
def blocks_kernel(counters_ptr, keys_ptr, out_ptr, n, SIZE: tl.constexpr):
    """Philox of ``n`` blocks; counters ``[n, 4]``, keys ``[n, 2]`` and out ``[n, 4]`` are int64."""
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = row < n
    c0 = tl.load(counters_ptr + row * 4, mask=mask, other=0).to(tl.uint32)
    c1 = tl.load(counters_ptr + row * 4 + 1, mask=mask, other=0).to(tl.uint32)
    c2 = tl.load(counters_ptr + row * 4 + 2, mask=mask, other=0).to(tl.uint32)
    c3 = tl.load(counters_ptr + row * 4 + 3, mask=mask, other=0).to(tl.uint32)
    k0 = tl.load(keys_ptr + row * 2, mask=mask, other=0).to(tl.uint32)
    k1 = tl.load(keys_ptr + row * 2 + 1, mask=mask, other=0).to(tl.uint32)
    w0, w1, w2, w3 = philox_rounds(c0, c1, c2, c3, k0, k1)
    tl.store(out_ptr + row * 4, w0.to(tl.int64), mask=mask)
    tl.store(out_ptr + row * 4 + 1, w1.to(tl.int64), mask=mask)
    tl.store(out_ptr + row * 4 + 2, w2.to(tl.int64), mask=mask)
    tl.store(out_ptr + row * 4 + 3, w3.to(tl.int64), mask=mask)


@triton.jit
def noise_kernel(rows_ptr, out_ptr, vocabulary, RAW: tl.constexpr, SIZE: tl.constexpr):
    """One row of noise per program along axis 1; rows ``[N, 5]`` int64 (seed low, seed high, position, domain, round).

    out is ``[N, V]``: int64 words if ``RAW``, else float32 E.
    """
    row = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * SIZE
    zero = tl.zeros((SIZE,), tl.uint32)
    k0 = tl.load(rows_ptr + row * 5).to(tl.uint32) + zero
    k1 = tl.load(rows_ptr + row * 5 + 1).to(tl.uint32) + zero
    position = tl.load(rows_ptr + row * 5 + 2).to(tl.uint32) + zero
    domain = tl.load(rows_ptr + row * 5 + 3).to(tl.uint32) + zero
    round_word = tl.load(rows_ptr + row * 5 + 4).to(tl.uint32) + zero
    index = (first + tl.arange(0, SIZE)).to(tl.uint32)
    w0, w1, w2, w3 = philox_rounds(index, position, domain, round_word, k0, k1)
    # interleave(a, b) = a0 b0 a1 b1 ...: words come out in the order of token ids, so the store is one run.
    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
    token = first.to(tl.int64) * 4 + tl.arange(0, SIZE * 4)
    if RAW:
        tl.store(out_ptr + row * vocabulary + token, words.to(tl.int64), mask=token < vocabulary)
    else:
        tl.store(out_ptr + row * vocabulary + token, exponential(words), mask=token < vocabulary)


def philox4x32(counters: Tensor, keys: Tensor) -> Tensor:
    """See :func:`ssd_kernels.philox.philox4x32`."""
    out = torch.empty_like(counters, memory_format=torch.contiguous_format)
    n = counters.shape[0]
    if n:
        blocks_kernel[(triton.cdiv(n, BLOCK),)](counters.contiguous(), keys.contiguous(), out, n, SIZE=BLOCK)
    return out


def _launch(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocabulary: int,
    domain: int,
    rounds: Sequence[int],
    device: torch.device,
    raw: bool,
) -> Tensor:
    rows = [(*split_seed(s), position, domain, r) for s, position, r in zip(seeds, positions, rounds, strict=True)]
    dtype = torch.int64 if raw else torch.float32
    out = torch.empty(len(rows), vocabulary, dtype=dtype, device=device)
    if rows:
        grid = (triton.cdiv(vocabulary, 4 * BLOCK), len(rows))
        rows_on_device = torch.tensor(rows, dtype=torch.int64, device=device)
        noise_kernel[grid](rows_on_device, out, vocabulary, RAW=raw, SIZE=BLOCK)
    return out


def noise_words(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocabulary: int,
    domain: int,
    rounds: Sequence[int],
    device: torch.device,
) -> Tensor:
    """See :func:`ssd_kernels.philox.noise_words`."""
    return _launch(seeds, positions, vocabulary, domain, rounds, device, raw=True)


def exponential_noise(
    seeds: Sequence[int],
    positions: Sequence[int],
    vocabulary: int,
    domain: int,
    rounds: Sequence[int],
    device: torch.device,
) -> Tensor:
    """See :func:`ssd_kernels.philox.exponential_noise`."""
    return _launch(seeds, positions, vocabulary, domain, rounds, device, raw=False)
