"""Functional API: checks arguments, picks a backend, returns torch tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_kernels.backends import Backend, KernelUnavailable, choose
from ssd_kernels.coupled import reference
from ssd_kernels.philox.layout import check_rows
from ssd_kernels.truncation import Cut

__all__ = ["coupled_sample"]


def coupled_sample(
    logits: Tensor,
    temperature: Sequence[float],
    seeds: Sequence[int],
    positions: Sequence[int],
    *,
    domain: int = 0,
    rounds: Sequence[int] | None = None,
    cut: Cut | None = None,
    backend: Backend | str | None = None,
) -> Tensor:
    """Tokens of several rows: argmax (l - max l) / T + g with g a pure function of (seed, position, id).

    The draw from softmax(l / T), cut where asked, that every holder of the seed reproduces; equal scores: lowest id.

    Parameters
    ----------
    logits : Tensor
        ``[R, V]``, any floating dtype, -inf at ids that may not be drawn; pass ``logits[:, :n]`` to leave padding out.
    temperature : Sequence[float]
        R values, not negative; 0 is greedy: no noise.
    seeds : Sequence[int]
        R integers, taken mod 2**64.
    positions : Sequence[int]
        R positions in [0, 2**32): index of the token being drawn in prompt + output.
    domain : int
        Stream of the noise (see :func:`ssd_kernels.philox.noise_words`).
    rounds : Sequence[int], optional
        R integers in [0, 2**32); default 0.
    cut : Cut, optional
        End of each row's support, from :func:`ssd_kernels.truncation.support_cut`.
    backend : Backend, optional
        Default: Triton on CUDA where it is installed, else torch.

    Returns
    -------
    Tensor
        int64 ``[R]``; -1 where a row leaves nothing to draw (NaN, infinite logits, everything banned). Backends agree
        but where two scores differ by rounding.

    Raises
    ------
    ValueError
        Lengths differ or a value is out of range.
    KernelUnavailable
        The backend cannot run here, or there is none (FlashInfer draws noise of its own).

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.coupled import coupled_sample
    >>> coupled_sample(torch.tensor([[0.0, 2.0, 2.0], [0.0, 0.0, 9.0]]), [0.0, 1.0], [7, 7], [3, 4])
    tensor([1, 2])
    """
    R, V = logits.shape
    if not logits.is_floating_point():
        raise ValueError(f"logits must be floating, got {logits.dtype}")
    for name, column in (("temperature", temperature), ("seeds", seeds)):
        if len(column) != R:
            raise ValueError(f"{len(column)} values of {name} for {R} rows")
    if any(not t >= 0 for t in temperature):
        raise ValueError("temperature must not be negative")
    if cut is not None and (cut.value.shape != (R,) or cut.last.shape != (R,)):
        raise ValueError(f"cut must hold {R} rows, got {tuple(cut.value.shape)} and {tuple(cut.last.shape)}")
    uses = check_rows(seeds, positions, V, domain, rounds)
    if backend is not None and Backend(backend) is Backend.FLASHINFER:
        raise KernelUnavailable("FlashInfer draws noise of its own, which no draft can share")
    chosen = choose(backend, logits.device)
    if R == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    if chosen is Backend.TRITON:
        from ssd_kernels.coupled import triton_kernel

        dense = logits if logits.stride(-1) == 1 else logits.contiguous()
        return triton_kernel.coupled_sample(dense, temperature, seeds, positions, domain, uses, cut)
    return reference.coupled_sample(logits, temperature, seeds, positions, domain, uses, cut)
