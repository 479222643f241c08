"""Token-wise verification by FlashInfer's chain speculative sampling (``flashinfer.sampling``, release 0.7.4)."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_kernels.backends import require_flashinfer
from ssd_kernels.verification.api import check_chain


def chain_verify(
    P: Tensor, Q: Tensor, x: Tensor, n: Tensor, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Token-wise verification with noise drawn by the kernel from a CUDA generator.

    The law of the result is that of :func:`ssd_kernels.verification.token_verify`; the draws are not, because the
    kernel takes no uniforms. It knows no ragged lengths either: sequences of one length run in one call.

    Parameters
    ----------
    P, Q, x, n
        As for :func:`ssd_kernels.verification.block_verify`, on CUDA.
    generator : torch.Generator, optional
        Of that device, advanced by the call; None: torch's default one.

    Returns
    -------
    (Tensor, Tensor)
        int64 ``[B]`` tokens kept, int64 ``[B]`` next tokens.

    Raises
    ------
    ValueError
        Shapes or dtypes do not fit together.
    KernelUnavailable
        CUDA or FlashInfer is missing.
    """
    check_chain(P, Q, x, n)
    sampling = require_flashinfer(P.device).sampling
    kept, following = torch.zeros_like(n), torch.zeros_like(n)
    for length in sorted(set(n.tolist())):
        rows = (n == length).nonzero().flatten()
        laws = P[rows, : length + 1].contiguous()
        if length == 0:
            following[rows] = sampling.sampling_from_probs(laws[:, 0], generator=generator).long()
            continue
        tokens, _, emitted = sampling.chain_speculative_sampling(
            Q[rows, :length].contiguous(), x[rows, :length].int().contiguous(), laws, generator=generator
        )
        kept[rows] = emitted.long()
        following[rows] = tokens.gather(1, emitted.long()[:, None])[:, 0].long()
    return kept, following
