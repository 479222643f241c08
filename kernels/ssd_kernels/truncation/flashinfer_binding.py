"""``flashinfer.sampling.top_k_renorm_probs`` and ``top_p_renorm_probs`` (release 0.7.4), without sorting."""

from __future__ import annotations

from torch import Tensor

from ssd_kernels.backends import require_flashinfer


def renormalise(probs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """See :func:`ssd_kernels.truncation.renormalise`. Keeps every id that ties with the last one kept."""
    sampling = require_flashinfer(probs.device).sampling
    V = probs.shape[1]
    law = probs.clone()
    cut = ((top_k > 0) & (top_k < V)).nonzero().flatten()
    if len(cut):
        law[cut] = sampling.top_k_renorm_probs(law[cut].contiguous(), top_k[cut].int())
    cut = (top_p < 1).nonzero().flatten()
    if len(cut):
        law[cut] = sampling.top_p_renorm_probs(law[cut].contiguous(), top_p[cut])
    return law / law.sum(-1, keepdim=True)
