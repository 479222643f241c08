"""Triton version; with ``TRITON_INTERPRET=1`` set before import it runs on CPU tensors, for tests. Import it lazily."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssd_kernels.packing import INFINITE, race_winner
from ssd_kernels.verification.triton_kernel import race_block

BLOCK = 2048
"""Vocabulary ids per program."""


@triton.jit
def packed_block(q, token, vocabulary):
    """Probability and id in one integer: the largest belongs to the largest probability, lowest id among equals."""
    bits = tl.maximum(q, 0.0).to(tl.int32, bitcast=True).to(tl.int64)
    return tl.where(token < vocabulary, (bits << 32) | (0xFFFFFFFF - token.to(tl.int64)), -1)


@triton.jit
def best_kernel(q_ptr, out_ptr, vocabulary, F, SIZE: tl.constexpr):
    """The F best of one vocabulary block, packed, best first; out ``[R, blocks, F]``, -1 where the block has fewer."""
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    q = tl.load(q_ptr + row * vocabulary + token, mask=token < vocabulary, other=0.0)
    packed = packed_block(q, token, vocabulary)
    place = out_ptr + (row * tl.num_programs(0) + tl.program_id(0)) * F
    for i in range(F):
        best = tl.max(packed, axis=0)
        tl.store(place + i, best)
        packed = tl.where(packed == best, -1, packed)


@triton.jit
def weights(q, token, vocabulary, cut, C):
    """q, times C from the packed value ``cut`` on."""
    return tl.where(packed_block(q, token, vocabulary) >= cut, C * q, q)


@triton.jit
def mass_kernel(q_ptr, cut_ptr, out_ptr, vocabulary, C, SIZE: tl.constexpr):
    """Sums of one vocabulary block: of the reshaped weights and of q; out ``[2, R, blocks]``."""
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    q = tl.load(q_ptr + row * vocabulary + token, mask=token < vocabulary, other=0.0)
    place = out_ptr + row * tl.num_programs(0) + tl.program_id(0)
    tl.store(place, tl.sum(weights(q, token, vocabulary, tl.load(cut_ptr + row), C), axis=0))
    tl.store(place + tl.num_programs(1) * tl.num_programs(0), tl.sum(q, axis=0))


@triton.jit
def draw_kernel(
    q_ptr,
    cut_ptr,
    total_ptr,
    E_ptr,
    sigma_ptr,
    out_ptr,
    vocabulary,
    C,
    SIZE: tl.constexpr,
    INFINITY_BITS: tl.constexpr,
):
    """sigma of one vocabulary block, and its race; totals ``[2, R]``, out ``[R, blocks]`` packed minima."""
    row = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    mask = token < vocabulary
    q = tl.load(q_ptr + row * vocabulary + token, mask=mask, other=0.0)
    total = tl.load(total_ptr + row)
    reshaped = total > 0.0
    weight = tl.where(reshaped, weights(q, token, vocabulary, tl.load(cut_ptr + row), C), q)
    divisor = tl.where(reshaped, total, tl.load(total_ptr + tl.num_programs(1) + row))
    sigma = tl.div_rn(weight, tl.zeros_like(weight) + divisor)
    tl.store(sigma_ptr + row * vocabulary + token, sigma, mask=mask)
    noise = tl.load(E_ptr + row * vocabulary + token, mask=mask, other=1.0)
    best = race_block(sigma, noise, token, mask, INFINITY_BITS)
    tl.store(out_ptr + row * tl.num_programs(0) + tl.program_id(0), best)


def saguaro_sample(q: Tensor, F: int, C: float, E: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.saguaro.saguaro_sample`; contiguous arguments, 1 <= F <= V."""
    R, V = q.shape
    blocks = triton.cdiv(V, BLOCK)
    grid = (blocks, R)
    best = torch.empty(R, blocks, F, dtype=torch.int64, device=q.device)
    best_kernel[grid](q, best, V, F, SIZE=BLOCK)
    cut = best.view(R, -1).topk(F, dim=-1).values[:, -1].contiguous()
    shares = torch.empty(2, R, blocks, device=q.device)
    mass_kernel[grid](q, cut, shares, V, C, SIZE=BLOCK)
    sigma, packed = torch.empty_like(q), torch.empty(R, blocks, dtype=torch.int64, device=q.device)
    draw_kernel[grid](q, cut, shares.sum(-1), E, sigma, packed, V, C, SIZE=BLOCK, INFINITY_BITS=INFINITE)
    return sigma, race_winner(packed.amin(-1))
