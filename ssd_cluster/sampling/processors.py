"""From logits to the law that tokens are drawn from: one function for target and draft (verification.md section 4).

Shapes: R rows, V ids (columns of a reduced head in a draft).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.sampling.truncation import Truncation, truncated_law, truncated_law_on_host

COLDEST = 1e-30
"""Temperatures between 0 and this are raised to it: differences of float32 logits already vanish there."""


@dataclass(frozen=True, slots=True)
class RowParams:
    """How one row of logits is processed; build it once per request and use the same object for its rows.

    Attributes:
        temperature: 0 is greedy; finite, not negative.
        top_k: number of ids kept; 0 keeps all.
        top_p: smallest set of ids whose mass reaches ``top_p`` is kept; in (0, 1], 1 keeps all.
        min_p: ids below ``min_p`` times the largest probability are dropped; in [0, 1], 0 keeps all.
        banned_ids: columns with probability 0 (end tokens before ``min_tokens``).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    banned_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, params: SamplingParams, banned_ids: tuple[int, ...] = ()) -> RowParams:
        """Row parameters of a request whose values were validated by ``SamplingParams``."""
        return cls(params.temperature, params.top_k, params.top_p, params.min_p, banned_ids)

    @property
    def greedy(self) -> bool:
        """The row's law is one-hot: no noise is needed to draw from it."""
        return self.temperature == 0

    @property
    def truncation(self) -> Truncation | None:
        """Cut of the support, or None if all of it is kept."""
        if self.top_k <= 0 and self.top_p >= 1 and self.min_p <= 0:
            return None
        return Truncation(top_k=max(self.top_k, 0), min_p=self.min_p, top_p=self.top_p)


def process(
    logits: Tensor, rows: Sequence[RowParams], valid_vocab: int | None = None, out: Tensor | None = None
) -> Tensor:
    """Probabilities that tokens are drawn from.

    Order: ids from ``valid_vocab`` on and banned ids, temperature, top_k, min_p, top_p, softmax. top_p counts mass
    among what top_k and min_p left. Of equal values the lowest ids stay. Greedy rows are one-hot at the argmax, lowest
    id. A row's result does not depend on the other rows.

    Args:
        logits: ``[R, V]``, any floating dtype, one row per token to be drawn; not changed.
        rows: R parameters; runs of equal neighbours are processed together.
        valid_vocab: number of ids that the tokenizer knows; padding behind it gets probability 0. None: all of V.
        out: float32 ``[R, V]``, contiguous, to write the result to; None: new memory.

    Returns:
        float32 ``[R, V]``, on the device of ``logits``. A row whose logits leave nothing to draw (NaN, infinite, all
        banned) holds NaN; drawing from it raises ``NumericalError``.

    Raises:
        ValueError: ``rows`` does not have R entries.
    """
    if logits.shape[0] != len(rows):
        raise ValueError(f"{len(rows)} parameter sets for {logits.shape[0]} rows of logits")
    logits = logits.detach().to(torch.float32)
    probs = torch.empty_like(logits, memory_format=torch.contiguous_format) if out is None else out
    for start, stop in _runs(rows):
        params = rows[start]
        group = _masked(logits[start:stop], params.banned_ids, valid_vocab)
        _process_group(group, params, probs[start:stop])
    return probs


def _runs(rows: Sequence[RowParams]) -> Iterator[tuple[int, int]]:
    """(start, stop) of the longest runs of equal neighbours."""
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or (rows[i] is not rows[start] and rows[i] != rows[start]):
            yield start, i
            start = i


def _masked(logits: Tensor, banned_ids: tuple[int, ...], valid_vocab: int | None) -> Tensor:
    """``logits`` with -inf at ids that may not be drawn; a copy only if there are such ids."""
    vocabulary = logits.shape[1]
    banned = [i for i in banned_ids if 0 <= i < vocabulary]
    cut = valid_vocab is not None and valid_vocab < vocabulary
    if not banned and not cut:
        return logits
    masked = logits.clone()
    if cut:
        masked[:, valid_vocab:] = float("-inf")
    if banned:
        masked[:, banned] = float("-inf")
    return masked


def _process_group(logits: Tensor, params: RowParams, out: Tensor) -> None:
    """Rows ``[n, V]`` with equal parameters, masked; the law is written to ``out`` ``[n, V]``."""
    if params.greedy:
        _one_hot(logits, out)
        return
    temperature = max(params.temperature, COLDEST)
    truncation = params.truncation
    if truncation is None:
        if temperature != 1:
            # The peak goes first: the quotients that matter are then small, and rounding does not grow as T falls.
            logits = logits.sub(logits.amax(dim=-1, keepdim=True)).div_(temperature)
        torch.softmax(logits, dim=-1, out=out)
    elif logits.device.type == "cpu":
        for row, row_out in zip(logits.unbind(0), out.unbind(0), strict=True):
            truncated_law_on_host(row.numpy(), temperature, truncation, row_out.numpy())
    else:
        out.copy_(truncated_law(logits, temperature, truncation))


def _one_hot(logits: Tensor, out: Tensor) -> None:
    """1 at each row's argmax, lowest id; NaN there if the largest logit is not finite."""
    out.zero_()
    if logits.device.type == "cpu":  # torch's argmax is many times slower than NumPy's there
        best = torch.tensor([int(row.numpy().argmax()) for row in logits.unbind(0)]).unsqueeze(1)
    else:
        best = logits.argmax(dim=-1, keepdim=True)
    peak = logits.gather(1, best)
    out.scatter_(1, best, peak - peak + 1)
