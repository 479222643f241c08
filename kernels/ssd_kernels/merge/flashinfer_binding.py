"""``flashinfer.merge_state`` (release 0.7.4): float16 and bfloat16 outputs, log-sum-exps to base 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ssd_kernels.backends import KernelUnavailable, require_flashinfer

LOG2_E = math.log2(math.e)


def merge_state(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.merge.merge_state`; contiguous arguments."""
    if out_a.dtype not in (torch.float16, torch.bfloat16):
        raise KernelUnavailable(f"FlashInfer merges float16 and bfloat16 outputs, not {out_a.dtype}")
    states = ((out_a, lse_a), (out_b, lse_b))
    H, D = lse_a.shape[-1], out_a.shape[-1]
    # A part without keys may hold anything, also NaN, which no weight of 0 removes.
    values = [out.masked_fill((lse == -math.inf).unsqueeze(-1), 0).view(-1, H, D) for out, lse in states]
    scores = [(lse * LOG2_E).view(-1, H) for _, lse in states]
    merged, scale = require_flashinfer(out_a.device).merge_state(values[0], scores[0], values[1], scores[1])
    lse = scale.view_as(lse_a) / LOG2_E
    return merged.view_as(out_a).masked_fill((lse == -math.inf).unsqueeze(-1), 0), lse
