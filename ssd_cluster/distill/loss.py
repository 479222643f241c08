"""The training loss: the target's stored law against the draft's logits, with and without the head inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_cluster.distill.data import Batch

_ROWS = 256  # rows whose float32 logits are there at once
_LEAST = 1e-38  # a probability below the smallest float32 counts as this


def goal(batch: Batch, cross_entropy: float) -> tuple[Tensor, Tensor]:
    """Weights and columns, [N, m (+ 1)] each, of the log probabilities that the loss adds up."""
    if not cross_entropy:
        return batch.p, batch.columns
    known = (batch.next_column >= 0).float() * cross_entropy
    p = torch.cat([batch.p, known[:, None]], 1)
    return p, torch.cat([batch.columns, batch.next_column.clamp_min(0)[:, None]], 1)


def law_loss(logits: Tensor, batch: Batch, cross_entropy: float) -> Tensor:
    """Mean over rows of -sum_i p_i log q_i (KL up to a constant) - ``cross_entropy`` * log q(next token).

    Mass of the target outside the head or outside its top m is left out: it cannot be drafted.
    """
    p, columns = goal(batch, cross_entropy)
    z = logits.float()
    return (p.sum(1) * z.logsumexp(-1) - (p * z.gather(1, columns)).sum(1)).mean()


class _HeadLoss(torch.autograd.Function):
    """See ``head_loss``. The gradient of the logits is made with the loss, while a block of them is in the cache.

    A training step of 3000 tokens takes about a tenth less time than with float32 logits of all rows (100 MB).
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, p: Tensor, columns: Tensor) -> Tensor:
        weight = head.to(hidden.dtype)
        of_logits = hidden.new_empty(len(hidden), len(head))
        loss = torch.zeros((), device=hidden.device)
        blocks = (hidden, p, columns, of_logits)
        scratch = torch.empty(_ROWS, len(head), device=hidden.device)
        for rows, wanted, at, out in zip(*(torch.split(t, _ROWS) for t in blocks), strict=True):
            torch.mm(rows, weight.t(), out=out)
            q = torch.softmax(out, -1, dtype=torch.float32, out=scratch[: len(rows)])
            loss -= (wanted * q.gather(1, at).clamp_min_(_LEAST).log_()).sum()
            q.mul_(wanted.sum(1, keepdim=True))
            out.copy_(q.scatter_add_(1, at, -wanted))
        ctx.save_for_backward(hidden, weight, of_logits)
        return loss / len(hidden)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, of_logits = ctx.saved_tensors
        scale = grads[0] / len(hidden)
        of_hidden, of_head = of_logits @ weight, (of_logits.t() @ hidden).float()
        return of_hidden.mul_(scale.to(of_hidden.dtype)), of_head.mul_(scale), None, None


def head_loss(hidden: Tensor, head: Tensor, batch: Batch, cross_entropy: float) -> Tensor:
    """``law_loss`` of the logits hidden head^T, of which only a block of rows exists at a time.

    Args:
        hidden: [N, E] after the last norm, any float dtype.
        head: [V_head, E] float32.
        batch: N rows.
        cross_entropy: weight of the token that follows.
    """
    loss: Tensor = _HeadLoss.apply(hidden, head, *goal(batch, cross_entropy))  # type: ignore[no-untyped-call]
    return loss
