"""Triton version; with ``TRITON_INTERPRET=1`` set before import it runs on CPU tensors, for tests. Import it lazily."""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4
"""States per program."""


@triton.jit
def merge_kernel(
    out_a_ptr, lse_a_ptr, out_b_ptr, lse_b_ptr, out_ptr, lse_ptr, n, D, ROWS: tl.constexpr, SIZE: tl.constexpr
):
    """``ROWS`` states per program; outputs ``[n, D]``, log-sum-exps ``[n]`` float32."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = row < n
    a = tl.load(lse_a_ptr + row, mask=live, other=0.0)
    b = tl.load(lse_b_ptr + row, mask=live, other=0.0)
    top = tl.maximum(a, b)
    base = tl.where(top == float("-inf"), 0.0, top)
    weight_a = tl.exp(a - base)
    weight_b = tl.exp(b - base)
    total = weight_a + weight_b
    safe = tl.where(total > 0.0, total, 1.0)
    column = tl.arange(0, SIZE)
    place = row[:, None] * D + column[None, :]
    mask = live[:, None] & (column[None, :] < D)
    # A part without keys may hold anything, so it is not read.
    part_a = tl.load(out_a_ptr + place, mask=mask & (weight_a > 0.0)[:, None], other=0.0).to(tl.float32)
    part_b = tl.load(out_b_ptr + place, mask=mask & (weight_b > 0.0)[:, None], other=0.0).to(tl.float32)
    merged = part_a * (weight_a / safe)[:, None] + part_b * (weight_b / safe)[:, None]
    tl.store(out_ptr + place, merged.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + row, tl.where(total > 0.0, base + tl.log(safe), float("-inf")), mask=live)


def merge_state(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.merge.merge_state`; contiguous arguments."""
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    n, D = lse.numel(), out.shape[-1]
    if n:
        size = triton.next_power_of_2(D)
        grid = (triton.cdiv(n, ROWS),)
        merge_kernel[grid](out_a, lse_a, out_b, lse_b, out, lse, n, D, ROWS=ROWS, SIZE=size)
    return out, lse
