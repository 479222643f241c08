"""Attention over a part of what a row sees, with the log-sum-exp that lets parts be merged."""

from __future__ import annotations

import torch
from torch import Tensor


def attend_lse(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its scores.

    Args:
        q: [B, G, M, D]; keys, values: [B, G, L, D] of the same dtype.
        mask: added to the scores, broadcast to [B, G, M, L], or None.

    Returns:
        ([B, G, M, D] in q's dtype, [B, G, M] float32).
    """
    if q.device.type == "cpu":  # the kernel behind scaled_dot_product_attention, which keeps the log-sum-exp to itself
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        out, lse = kernel(q, keys, values, attn_mask=mask)
        return out, lse
    return attend_lse_dense(q, keys, values, mask)


def attend_lse_dense(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """``attend_lse`` written out, in float32; any device."""
    scores = q.float() @ keys.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return ((scores - lse.unsqueeze(-1)).exp() @ values.float()).to(q.dtype), lse


def merge(first: Tensor, first_lse: Tensor, second: Tensor, second_lse: Tensor) -> Tensor:
    """Attention over the union of two disjoint parts: outputs [..., D] float32, log-sum-exps [...]."""
    return torch.lerp(first, second, torch.sigmoid(second_lse - first_lse).unsqueeze(-1))


def hiding_mask(visible: Tensor, length: int, dtype: torch.dtype) -> Tensor:
    """[*visible.shape, length]: 0 at the first ``visible`` places of a row, -inf after them."""
    hidden = torch.arange(length, device=visible.device) >= visible.unsqueeze(-1)
    return torch.zeros(hidden.shape, dtype=dtype, device=visible.device).masked_fill_(hidden, float("-inf"))
