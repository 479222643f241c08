"""Triton version; with ``TRITON_INTERPRET=1`` set before import it runs on CPU tensors, for tests. Import it lazily.

Each [B, g, V] input is read once, block by block; what is kept between launches is one number per (sequence, row,
vocabulary block). Functions under ``triton.jit`` carry no annotations, which the compiler would try to resolve.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssd_kernels.packing import INFINITE, race_winner

BLOCK = 2048
"""Vocabulary ids per program."""


@triton.jit
def drafted(P_ptr, Q_ptr, x_ptr, sequence, length, P_sequence, P_row, Q_sequence, Q_row, g, steps):
    """(P_t[x_{t+1}], Q_t[x_{t+1}]) at ``steps``; 1 beyond the length."""
    live = steps < length
    token = tl.load(x_ptr + sequence * g + steps, mask=live, other=0)
    p = tl.load(P_ptr + sequence * P_sequence + steps.to(tl.int64) * P_row + token, mask=live, other=1.0)
    q = tl.load(Q_ptr + sequence * Q_sequence + steps.to(tl.int64) * Q_row + token, mask=live, other=1.0)
    return p, q


@triton.jit
def log_rho_kernel(P_ptr, Q_ptr, x_ptr, n_ptr, out_ptr, P_sequence, P_row, Q_sequence, Q_row, g, STEPS: tl.constexpr):
    """log rho_0..rho_g of one sequence per program; out ``[B, g + 1]`` float32."""
    sequence = tl.program_id(0).to(tl.int64)
    steps = tl.arange(0, STEPS)
    length = tl.load(n_ptr + sequence)
    p, q = drafted(P_ptr, Q_ptr, x_ptr, sequence, length, P_sequence, P_row, Q_sequence, Q_row, g, steps)
    good = (p > 0.0) & (q >= 0.0)
    ratio = tl.where(good, tl.log(tl.where(good, p, 1.0)) - tl.log(tl.where(good, q, 1.0)), float("-inf"))
    log_rho = 0.0
    tl.store(out_ptr + sequence * (g + 1), log_rho)
    for t in range(g):
        step = tl.sum(tl.where(steps == t, ratio, 0.0), axis=0)
        gone = (log_rho == float("-inf")) | (step == float("-inf"))
        log_rho = tl.where(gone, float("-inf"), tl.minimum(log_rho + step, 0.0))
        tl.store(out_ptr + sequence * (g + 1) + t + 1, log_rho)


@triton.jit
def mass_kernel(
    P_ptr, Q_ptr, log_rho_ptr, n_ptr, out_ptr, P_sequence, P_row, Q_sequence, Q_row, g, vocabulary, SIZE: tl.constexpr
):
    """Share of one vocabulary block in S_t = sum (rho_t P_t - Q_t)+; out ``[B, g, blocks]``, 0 where t >= n."""
    block = tl.program_id(0)
    t = tl.program_id(1)
    sequence = tl.program_id(2).to(tl.int64)
    token = block * SIZE + tl.arange(0, SIZE)
    mask = token < tl.where(t < tl.load(n_ptr + sequence), vocabulary, 0)
    p = tl.load(P_ptr + sequence * P_sequence + t.to(tl.int64) * P_row + token, mask=mask, other=0.0)
    q = tl.load(Q_ptr + sequence * Q_sequence + t.to(tl.int64) * Q_row + token, mask=mask, other=0.0)
    rho = tl.exp(tl.load(log_rho_ptr + sequence * (g + 1) + t))
    share = tl.sum(tl.maximum(rho * p - q, 0.0), axis=0)
    tl.store(out_ptr + (sequence * g + t) * tl.num_programs(0) + block, share)


@triton.jit
def block_stop_kernel(
    log_rho_ptr, mass_ptr, u_ptr, n_ptr, kept_ptr, rho_ptr, g, blocks, STEPS: tl.constexpr, BLOCKS: tl.constexpr
):
    """tau and rho_tau of one sequence per program (rho 1 after full acceptance)."""
    sequence = tl.program_id(0).to(tl.int64)
    length = tl.load(n_ptr + sequence)
    t = tl.arange(0, STEPS)
    index = tl.arange(0, BLOCKS)
    inside = (t[:, None] < length) & (index[None, :] < blocks)
    shares = tl.load(mass_ptr + (sequence * g + t[:, None]) * blocks + index[None, :], mask=inside, other=0.0)
    mass = tl.sum(shares, axis=1)
    log_rho = tl.load(log_rho_ptr + sequence * (g + 1) + t, mask=t <= length, other=0.0)
    # 1 - rho, in float64 because rho may differ from 1 by less than float32 can say.
    total = mass + (1.0 - tl.exp(log_rho.to(tl.float64))).to(tl.float32)
    h = tl.where(total <= 0.0, 1.0, mass / tl.where(total <= 0.0, 1.0, total))
    h = tl.where(t == length, tl.exp(log_rho), h)
    u = tl.load(u_ptr + sequence * g + t - 1, mask=(t > 0) & (t <= length), other=1.0)
    stays = (t == 0) | ((t <= length) & (u < h))
    kept = tl.max(tl.where(stays, t, 0), axis=0)
    rho = tl.sum(tl.where(t == kept, tl.exp(log_rho), 0.0), axis=0)
    tl.store(kept_ptr + sequence, kept.to(tl.int64))
    tl.store(rho_ptr + sequence, tl.where(kept == length, 1.0, rho))


@triton.jit
def token_stop_kernel(
    P_ptr, Q_ptr, x_ptr, u_ptr, n_ptr, kept_ptr, P_sequence, P_row, Q_sequence, Q_row, g, STEPS: tl.constexpr
):
    """First t that fails u_t < P_t[x] / Q_t[x], of one sequence per program."""
    sequence = tl.program_id(0).to(tl.int64)
    steps = tl.arange(0, STEPS)
    length = tl.load(n_ptr + sequence)
    p, q = drafted(P_ptr, Q_ptr, x_ptr, sequence, length, P_sequence, P_row, Q_sequence, Q_row, g, steps)
    u = tl.load(u_ptr + sequence * g + steps, mask=steps < length, other=0.0)
    ratio = tl.where(q > 0.0, tl.div_rn(p, tl.where(q > 0.0, q, 1.0)), tl.where(p > 0.0, float("inf"), float("nan")))
    stays = (u < ratio) | (steps >= length)
    kept = tl.min(tl.where(stays, length, steps.to(length.dtype)), axis=0)
    tl.store(kept_ptr + sequence, kept.to(tl.int64))


@triton.jit
def race_block(weight, noise, token, mask, INFINITY_BITS: tl.constexpr):
    """Packed minimum of noise / weight over a block."""
    good = mask & (weight > 0.0)
    quotient = tl.where(good, tl.div_rn(noise, tl.where(good, weight, 1.0)), float("inf"))
    bits = tl.where(mask, quotient.to(tl.int32, bitcast=True), INFINITY_BITS)
    return tl.min((bits.to(tl.int64) << 32) | token.to(tl.int64), axis=0)


@triton.jit
def residual_kernel(
    P_ptr,
    Q_ptr,
    E_ptr,
    n_ptr,
    kept_ptr,
    rho_ptr,
    out_ptr,
    P_sequence,
    P_row,
    Q_sequence,
    Q_row,
    vocabulary,
    SIZE: tl.constexpr,
    INFINITY_BITS: tl.constexpr,
):
    """Races of one vocabulary block over (rho P - Q)+ and over P at the stop; out ``[2, B, blocks]`` packed minima."""
    block = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    kept = tl.load(kept_ptr + sequence)
    token = block * SIZE + tl.arange(0, SIZE)
    mask = token < vocabulary
    counted = token < tl.where(kept < tl.load(n_ptr + sequence), vocabulary, 0)
    p = tl.load(P_ptr + sequence * P_sequence + kept * P_row + token, mask=mask, other=0.0)
    q = tl.load(Q_ptr + sequence * Q_sequence + kept * Q_row + token, mask=counted, other=0.0)
    noise = tl.load(E_ptr + sequence * vocabulary + token, mask=mask, other=1.0)
    residual = tl.maximum(tl.load(rho_ptr + sequence) * p - q, 0.0)
    place = out_ptr + sequence * tl.num_programs(0) + block
    tl.store(place, race_block(residual, noise, token, mask, INFINITY_BITS))
    plain = place + tl.num_programs(1) * tl.num_programs(0)
    tl.store(plain, race_block(p, noise, token, mask, INFINITY_BITS))


def _next_token(P: Tensor, Q: Tensor, E: Tensor, n: Tensor, kept: Tensor, rho: Tensor) -> Tensor:
    B, V = E.shape
    blocks = triton.cdiv(V, BLOCK)
    packed = torch.empty(2, B, blocks, dtype=torch.int64, device=P.device)
    strides = (*P.stride()[:2], *Q.stride()[:2])
    residual_kernel[(blocks, B)](P, Q, E, n, kept, rho, packed, *strides, V, SIZE=BLOCK, INFINITY_BITS=INFINITE)
    residual, plain = packed.amin(-1)
    return race_winner(torch.where(residual >> 32 >= INFINITE, plain, residual))


def block_verify(P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.verification.block_verify`; last dimensions dense, x, n, u and E contiguous."""
    B, g, V = Q.shape
    blocks = triton.cdiv(V, BLOCK)
    strides = (*P.stride()[:2], *Q.stride()[:2])
    steps = triton.next_power_of_2(g + 1)
    log_rho = torch.empty(B, g + 1, device=P.device)
    log_rho_kernel[(B,)](P, Q, x, n, log_rho, *strides, g, STEPS=steps)
    mass = torch.empty(B, g, blocks, device=P.device)
    if g:
        mass_kernel[(blocks, g, B)](P, Q, log_rho, n, mass, *strides, g, V, SIZE=BLOCK)
    kept, rho = torch.empty_like(n), torch.empty(B, device=P.device)
    padded = triton.next_power_of_2(blocks)
    block_stop_kernel[(B,)](log_rho, mass, u, n, kept, rho, g, blocks, STEPS=steps, BLOCKS=padded)
    return kept, _next_token(P, Q, E, n, kept, rho)


def token_verify(P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.verification.token_verify`; last dimensions dense, x, n, u and E contiguous."""
    B, g, _ = Q.shape
    kept = torch.empty_like(n)
    steps = triton.next_power_of_2(max(g, 1))
    token_stop_kernel[(B,)](P, Q, x, u, n, kept, *P.stride()[:2], *Q.stride()[:2], g, STEPS=steps)
    return kept, _next_token(P, Q, E, n, kept, torch.ones(B, device=P.device))
