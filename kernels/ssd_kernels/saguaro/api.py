"""Functional API: checks arguments, picks a backend, returns torch tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_kernels.backends import Backend, KernelUnavailable, choose
from ssd_kernels.saguaro import reference

__all__ = ["saguaro_sample"]


def saguaro_sample(
    q: Tensor, F: int, C: float, E: Tensor, *, backend: Backend | str | None = None
) -> tuple[Tensor, Tensor]:
    """Reshape a draft's laws, sigma proportional to C q on the F largest of q and to q elsewhere, and draw from them.

    sigma is the law that the proposal is verified with. The residual (p - sigma)+ then concentrates on the F tokens
    that the draft guesses next. Source: the SAGUARO sampling of "Speculative Speculative Decoding".

    Parameters
    ----------
    q : Tensor
        float32 ``[R, V]``, rows that sum to 1.
    F : int
        Number of tokens lowered, not negative; of equal probabilities the lowest ids.
    C : float
        In [0, 1]; 1 leaves q as it is.
    E : Tensor
        float32 ``[R, V]`` standard exponential noise.
    backend : Backend, optional
        Default: Triton on CUDA where it is installed, else torch.

    Returns
    -------
    (Tensor, Tensor)
        sigma, float32 ``[R, V]``; int64 ``[R]`` tokens, -1 where a row has no mass. Where nothing but the F tokens has
        mass and C = 0, sigma is q: the limit of C towards 0.

    Raises
    ------
    ValueError
        Shapes or dtypes do not fit together, or F or C is out of range.
    KernelUnavailable
        The backend cannot run here, or there is none (FlashInfer).

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.saguaro import saguaro_sample
    >>> saguaro_sample(torch.tensor([[0.5, 0.25, 0.25]]), 1, 0.5, torch.tensor([[1.0, 1.0, 0.5]]))
    (tensor([[0.3333, 0.3333, 0.3333]]), tensor([2]))
    """
    if q.ndim != 2 or E.shape != q.shape or q.dtype != torch.float32 or E.dtype != torch.float32:
        raise ValueError(f"need q and E float32 [R, V], got {list(q.shape)} {q.dtype} and {list(E.shape)} {E.dtype}")
    if F < 0 or not 0 <= C <= 1:
        raise ValueError(f"F must not be negative and C must be in [0, 1], got {F} and {C}")
    if backend is not None and Backend(backend) is Backend.FLASHINFER:
        raise KernelUnavailable("FlashInfer has no SAGUARO sampling")
    # Without tokens to lower the weights are q; F = 1 and C = 1 say the same to the kernel.
    count, factor = (min(F, q.shape[1]), C) if F else (1, 1.0)
    if choose(backend, q.device) is Backend.TRITON and q.shape[0]:
        from ssd_kernels.saguaro import triton_kernel

        return triton_kernel.saguaro_sample(q.contiguous(), count, factor, E.contiguous())
    return reference.saguaro_sample(q, count, factor, E)
