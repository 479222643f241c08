"""Triton version; with ``TRITON_INTERPRET=1`` set before import it runs on CPU tensors, for tests. Import it lazily.

Noise never leaves the program that draws it, and neither do probabilities: argmax (l - max l) / T + g needs no softmax.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ssd_kernels.packing import NOTHING, score_winner
from ssd_kernels.philox.layout import split_seed
from ssd_kernels.philox.triton_kernel import exponential, philox_rounds
from ssd_kernels.truncation import Cut

BLOCK = 256
"""Philox blocks (four ids each) per program."""


@triton.jit
def noise_block(counters_ptr, row, first, SIZE: tl.constexpr):
    """E of the ids from ``4 first`` on; counters ``[R, 5]``: seed low, seed high, position, domain, round."""
    zero = tl.zeros((SIZE,), tl.uint32)
    place = counters_ptr + row * 5
    low = tl.load(place).to(tl.uint32) + zero
    high = tl.load(place + 1).to(tl.uint32) + zero
    position = tl.load(place + 2).to(tl.uint32) + zero
    domain = tl.load(place + 3).to(tl.uint32) + zero
    use = tl.load(place + 4).to(tl.uint32) + zero
    index = (first + tl.arange(0, SIZE)).to(tl.uint32)
    w0, w1, w2, w3 = philox_rounds(index, position, domain, use, low, high)
    return exponential(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))


@triton.jit
def sample_kernel(
    logits_ptr,
    counters_ptr,
    temperature_ptr,
    peak_ptr,
    cut_ptr,
    last_ptr,
    out_ptr,
    stride,
    vocabulary,
    CUT: tl.constexpr,
    SIZE: tl.constexpr,
    NOTHING: tl.constexpr,
):
    """Packed maximum of the scores of one vocabulary block; out ``[R, blocks]`` int64."""
    row = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * SIZE
    token = first * 4 + tl.arange(0, SIZE * 4)
    logit = tl.load(logits_ptr + row * stride + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
    temperature = tl.load(temperature_ptr + row)
    divisor = tl.where(temperature > 0.0, temperature, 1.0)
    centred = logit - tl.load(peak_ptr + row)
    score = tl.div_rn(centred, tl.zeros_like(centred) + divisor)
    if temperature > 0.0:
        score -= tl.log(noise_block(counters_ptr, row, first, SIZE))
    usable = (score > float("-inf")) & (token < vocabulary)
    if CUT:
        cut = tl.load(cut_ptr + row)
        usable = usable & ((logit > cut) | ((logit == cut) & (token <= tl.load(last_ptr + row))))
    # Signed integers in the order of the floats; + 0.0 makes a negative zero positive.
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    packed = tl.where(usable, (ordered << 32) | (0xFFFFFFFF - token.to(tl.int64)), NOTHING)
    tl.store(out_ptr + row * tl.num_programs(0) + tl.program_id(0), tl.max(packed, axis=0))


def coupled_sample(
    logits: Tensor,
    temperature: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
    domain: int,
    rounds: Sequence[int],
    cut: Cut | None,
) -> Tensor:
    """See :func:`ssd_kernels.coupled.coupled_sample`; rows of logits are dense."""
    R, V = logits.shape
    device = logits.device
    rows = [(*split_seed(s), p, domain, r) for s, p, r in zip(seeds, positions, rounds, strict=True)]
    counters = torch.tensor(rows, dtype=torch.int64, device=device)
    divisors = torch.tensor(list(temperature), dtype=torch.float32, device=device)
    peak = logits.amax(-1).float()
    blocks = triton.cdiv(V, 4 * BLOCK)
    packed = torch.empty(R, blocks, dtype=torch.int64, device=device)
    value, last = (cut.value, cut.last) if cut is not None else (peak, counters)
    sample_kernel[(blocks, R)](
        logits,
        counters,
        divisors,
        peak,
        value,
        last,
        packed,
        logits.stride(0),
        V,
        CUT=cut is not None,
        SIZE=BLOCK,
        NOTHING=NOTHING,
    )
    return score_winner(packed.amax(-1))
