"""Functional API: checks arguments, picks a backend, returns torch tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_kernels.backends import Backend, choose
from ssd_kernels.merge import reference

__all__ = ["merge_state"]


def merge_state(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, backend: Backend | str | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over the union of two disjoint sets of keys from the attention over each.

    Parameters
    ----------
    out_a, out_b : Tensor
        ``[..., H, D]`` outputs, float32, float16 or bfloat16, both of one dtype.
    lse_a, lse_b : Tensor
        float32 ``[..., H]``, natural logarithm of the sum of exponentials of the scores; -inf for a part without keys,
        whose output is ignored.
    backend : Backend, optional
        Default: Triton on CUDA where it is installed, else torch. FlashInfer takes no float32 outputs.

    Returns
    -------
    (Tensor, Tensor)
        The merged output, dtype of ``out_a``, and log-sum-exp, float32. Without keys in both parts: 0 and -inf.

    Raises
    ------
    ValueError
        Shapes or dtypes do not fit together.
    KernelUnavailable
        The backend cannot run here.

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.merge import merge_state
    >>> out, lse = merge_state(torch.ones(1, 1, 2), torch.zeros(1, 1), torch.zeros(1, 1, 2), torch.zeros(1, 1))
    >>> out
    tensor([[[0.5000, 0.5000]]])
    """
    if out_a.ndim < 2 or out_b.shape != out_a.shape or lse_a.shape != out_a.shape[:-1] or lse_b.shape != lse_a.shape:
        shapes = [list(tensor.shape) for tensor in (out_a, lse_a, out_b, lse_b)]
        raise ValueError(f"need outputs [..., H, D] and log-sum-exps [..., H], got {shapes}")
    if out_a.dtype != out_b.dtype or not out_a.is_floating_point():
        raise ValueError(f"outputs must have one floating dtype, got {out_a.dtype} and {out_b.dtype}")
    if lse_a.dtype != torch.float32 or lse_b.dtype != torch.float32:
        raise ValueError(f"log-sum-exps must be float32, got {lse_a.dtype} and {lse_b.dtype}")
    states = (out_a.contiguous(), lse_a.contiguous(), out_b.contiguous(), lse_b.contiguous())
    chosen = choose(backend, out_a.device)
    if chosen is Backend.TRITON:
        from ssd_kernels.merge import triton_kernel

        return triton_kernel.merge_state(*states)
    if chosen is Backend.FLASHINFER:
        from ssd_kernels.merge import flashinfer_binding

        return flashinfer_binding.merge_state(*states)
    return reference.merge_state(*states)
