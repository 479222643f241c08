"""Functional API: checks arguments, picks a backend, returns torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_kernels.backends import Backend, KernelUnavailable, choose
from ssd_kernels.truncation import reference

__all__ = ["Cut", "renormalise", "support_cut"]


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the support of R rows of logits ends: ids with a larger logit stay, and equal ones up to id ``last``.

    Attributes:
        value: float32 ``[R]``.
        last: int64 ``[R]``.
    """

    value: Tensor
    last: Tensor


def support_cut(
    logits: Tensor, temperature: Sequence[float], top_k: Sequence[int], min_p: Sequence[float], top_p: Sequence[float]
) -> Cut:
    """Where top_k, min_p and top_p, in this order, end the support of each row. Of equal logits the lowest ids stay.

    Parameters
    ----------
    logits : Tensor
        ``[R, V]``, -inf at ids that may not be drawn.
    temperature : Sequence[float]
        R values; min_p and top_p count weights exp((l - max) / T), where 0 stands for 1.
    top_k : Sequence[int]
        R numbers of ids kept; 0 keeps all.
    min_p : Sequence[float]
        R values in [0, 1]: ids below ``min_p`` times the largest probability go.
    top_p : Sequence[float]
        R values in (0, 1]: the smallest set whose mass, among what is left, reaches it stays; 1 keeps all.

    Raises
    ------
    ValueError
        Lengths differ or a value is out of range.

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.truncation import support_cut
    >>> support_cut(torch.tensor([[1.0, 3.0, 2.0, 2.0]]), [1.0], [2], [0.0], [1.0])
    Cut(value=tensor([2.]), last=tensor([2]))
    """
    R = logits.shape[0]
    _check_rows(R, temperature=temperature, top_k=top_k, min_p=min_p, top_p=top_p)
    if any(t < 0 for t in temperature) or any(not 0 <= m <= 1 for m in min_p):
        raise ValueError("temperature must not be negative and min_p must be in [0, 1]")
    _check_cuts(top_k, top_p)
    device = logits.device
    value, last = reference.support_cut(
        logits,
        torch.tensor([t or 1.0 for t in temperature], device=device),
        torch.tensor(list(top_k), dtype=torch.int64, device=device),
        torch.tensor(list(min_p), dtype=torch.float32, device=device),
        torch.tensor(list(top_p), dtype=torch.float32, device=device),
    )
    return Cut(value, last)


def renormalise(
    probs: Tensor, top_k: Sequence[int], top_p: Sequence[float], *, backend: Backend | str | None = None
) -> Tensor:
    """Probabilities cut by top_k, then top_p, and renormalised.

    Parameters
    ----------
    probs : Tensor
        float32 ``[R, V]``, rows that sum to 1.
    top_k : Sequence[int]
        R numbers of ids kept; 0 keeps all.
    top_p : Sequence[float]
        R values in (0, 1]; 1 keeps all.
    backend : Backend, optional
        Default: torch (full sorts; of equal values the lowest ids stay). FlashInfer does not sort, but keeps every id
        that ties with the last one: a law of its own, for use where target and reference need not agree at ties.

    Returns
    -------
    Tensor
        float32 ``[R, V]``.

    Raises
    ------
    ValueError
        Lengths differ or a value is out of range.
    KernelUnavailable
        The backend cannot run here, or there is none (Triton).

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.truncation import renormalise
    >>> renormalise(torch.tensor([[0.5, 0.25, 0.25]]), [2], [1.0])
    tensor([[0.6667, 0.3333, 0.0000]])
    """
    _check_rows(probs.shape[0], top_k=top_k, top_p=top_p)
    _check_cuts(top_k, top_p)
    if probs.dtype != torch.float32:
        raise ValueError(f"probs must be float32, got {probs.dtype}")
    chosen = Backend.TORCH if backend is None else Backend(backend)
    if chosen is Backend.TRITON:
        raise KernelUnavailable("there is no Triton kernel for renormalise; use torch or flashinfer")
    counts = torch.tensor(list(top_k), dtype=torch.int64, device=probs.device)
    shares = torch.tensor(list(top_p), dtype=torch.float32, device=probs.device)
    if choose(chosen, probs.device) is Backend.FLASHINFER:
        from ssd_kernels.truncation import flashinfer_binding

        return flashinfer_binding.renormalise(probs, counts, shares)
    return reference.renormalise(probs, counts, shares)


def _check_rows(n_rows: int, **columns: Sequence[float]) -> None:
    for name, column in columns.items():
        if len(column) != n_rows:
            raise ValueError(f"{len(column)} values of {name} for {n_rows} rows")


def _check_cuts(top_k: Sequence[int], top_p: Sequence[float]) -> None:
    if any(k < 0 for k in top_k):
        raise ValueError("top_k must not be negative")
    if any(not 0 < p <= 1 for p in top_p):
        raise ValueError("top_p must be in (0, 1]")
