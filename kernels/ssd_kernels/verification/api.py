"""Functional API: checks arguments, picks a backend, returns torch tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_kernels.backends import Backend, KernelUnavailable, choose
from ssd_kernels.verification import reference

__all__ = ["block_verify", "token_verify"]


def block_verify(
    P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor, *, backend: Backend | str | None = None
) -> tuple[Tensor, Tensor]:
    """Block verification of one chain per sequence, which is HSD with the ratio capped at every position.

    rho_0 = 1, rho_t = min(1, rho_{t-1} P_{t-1}(x_t) / Q_{t-1}(x_t)); S_t = sum (rho_t P_t - Q_t)+;
    h_t = S_t / (S_t + 1 - rho_t) for 0 < t < n, h_n = rho_n. kept = the largest t with t = 0 or u_t < h_t. The next
    token is drawn from (rho P - Q)+ at row kept, after full acceptance from P_n. Source: Sun et al., "Block
    Verification Accelerates Speculative Decoding", arXiv 2403.10444.

    Parameters
    ----------
    P : Tensor
        float32 ``[B, g + 1, V]``, the target's processed rows; row t follows the first t drafted tokens.
    Q : Tensor
        float32 ``[B, g, V]``, the laws that the drafted tokens were really sampled from.
    x : Tensor
        int64 ``[B, g]`` drafted tokens, each in [0, V) where it counts; Q of a drafted token is positive.
    n : Tensor
        int64 ``[B]``, number of drafted tokens of each sequence, 0 to g. What lies beyond it is not looked at.
    u : Tensor
        float32 ``[B, g]`` independent uniforms in [0, 1); ``u[:, t]`` belongs to ``x[:, t]``.
    E : Tensor
        float32 ``[B, V]`` standard exponential noise for the next token, independent of u.
    backend : Backend, optional
        Default: Triton on CUDA where it is installed, else torch. FlashInfer has no such operation.

    Returns
    -------
    (Tensor, Tensor)
        int64 ``[B]`` tokens kept, int64 ``[B]`` next tokens; -1 where the row leaves nothing to draw (NaN or zeros).

    Raises
    ------
    ValueError
        Shapes or dtypes do not fit together.
    KernelUnavailable
        The backend cannot run here.

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.verification import block_verify
    >>> P = torch.tensor([[[0.7, 0.3], [0.7, 0.3], [0.7, 0.3]]])
    >>> Q = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    >>> x, n = torch.tensor([[0, 1]]), torch.tensor([2])
    >>> block_verify(P, Q, x, n, torch.tensor([[0.1, 0.9]]), torch.ones(1, 2))
    (tensor([1]), tensor([0]))
    """
    tensors = _checked(P, Q, x, n, u, E)
    if _backend(backend, P) is Backend.TRITON:
        from ssd_kernels.verification import triton_kernel

        return triton_kernel.block_verify(*tensors)
    return reference.block_verify(*tensors)


def token_verify(
    P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor, *, backend: Backend | str | None = None
) -> tuple[Tensor, Tensor]:
    """Token-wise verification: keep x_{t+1} while u_t < P_t(x_{t+1}) / Q_t(x_{t+1}).

    At the first failure the next token is drawn from (P_t - Q_t)+, after full acceptance from P_n. Source: Leviathan
    et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023. FlashInfer's version of it draws
    its own noise: :func:`ssd_kernels.verification.chain_verify`.

    Parameters, results and errors as for :func:`block_verify`.

    Examples
    --------
    >>> import torch
    >>> from ssd_kernels.verification import token_verify
    >>> P, Q = torch.tensor([[[0.7, 0.3], [0.7, 0.3]]]), torch.tensor([[[0.5, 0.5]]])
    >>> token_verify(P, Q, torch.tensor([[1]]), torch.tensor([1]), torch.tensor([[0.7]]), torch.ones(1, 2))
    (tensor([0]), tensor([0]))
    """
    tensors = _checked(P, Q, x, n, u, E)
    if _backend(backend, P) is Backend.TRITON:
        from ssd_kernels.verification import triton_kernel

        return triton_kernel.token_verify(*tensors)
    return reference.token_verify(*tensors)


def _backend(backend: Backend | str | None, P: Tensor) -> Backend:
    if backend is not None and Backend(backend) is Backend.FLASHINFER:
        raise KernelUnavailable(
            "FlashInfer verifies chains only token-wise and with noise of its own; use chain_verify for that"
        )
    return choose(backend, P.device)


def _checked(
    P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The arguments in the layout that the kernels expect."""
    check_chain(P, Q, x, n)
    B, g, V = Q.shape
    if u.shape != (B, g) or E.shape != (B, V):
        raise ValueError(f"need u {(B, g)} and E {(B, V)}, got {tuple(u.shape)} and {tuple(E.shape)}")
    for name, tensor in (("u", u), ("E", E)):
        if tensor.dtype != torch.float32:
            raise ValueError(f"{name} must be float32, got {tensor.dtype}")
    dense = [rows if rows.stride(-1) == 1 else rows.contiguous() for rows in (P, Q)]
    return dense[0], dense[1], x.contiguous(), n.contiguous(), u.contiguous(), E.contiguous()


def check_chain(P: Tensor, Q: Tensor, x: Tensor, n: Tensor) -> None:
    """Refuse rows and tokens that do not fit together.

    Raises:
        ValueError: shapes or dtypes are wrong. Values are not looked at: that would wait for the device.
    """
    if Q.ndim != 3:
        raise ValueError(f"Q must be [B, g, V], got {tuple(Q.shape)}")
    B, g, V = Q.shape
    wanted = {"P": (B, g + 1, V), "x": (B, g), "n": (B,)}
    for (name, shape), tensor in zip(wanted.items(), (P, x, n), strict=True):
        if tensor.shape != shape:
            raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
    if P.dtype != torch.float32 or Q.dtype != torch.float32:
        raise ValueError(f"P and Q must be float32, got {P.dtype} and {Q.dtype}")
    if x.dtype != torch.int64 or n.dtype != torch.int64:
        raise ValueError(f"x and n must be int64, got {x.dtype} and {n.dtype}")
