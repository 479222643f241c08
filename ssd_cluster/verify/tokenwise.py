"""The token-wise rule (Leviathan et al., arXiv 2211.17192): each token by its own ratio, left to right.

Keep x_{t+1} while u_{t+1} < r_{t+1} = P_t(x_{t+1}) / Q_t(x_{t+1}). At the first failure draw from (P_t - Q_t)+; behind
a whole chain draw from P_n.
"""

from __future__ import annotations

import torch
from ssd_kernels.verification import token_verify
from torch import Tensor

from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.chain import Chain, emit, log_ratios, row_probability, stopped, verify_chains


def tokenwise_thresholds(log_ratio: Tensor, n: Tensor) -> Tensor:
    """h_1..h_g, float64 ``[B, g]``: what u_t must stay below for x_t to be kept; min(1, r_t), 0 behind n_b.

    Args:
        log_ratio: float64 ``[B, g]``, :func:`ssd_cluster.verify.chain.log_ratios`.
        n: int64 ``[B]``.
    """
    behind = torch.arange(log_ratio.shape[1], device=n.device) >= n.unsqueeze(1)
    return log_ratio.clamp(max=0.0).exp().masked_fill(behind, 0.0)


def tokenwise(P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """Token-wise verification of B padded chains.

    Args:
        P: float32 ``[B, g + 1, V]`` target rows.
        Q: float32 ``[B, g, V]`` draft rows; Q_t(x_{t+1}) > 0.
        x: int64 ``[B, g]`` proposed tokens.
        n: int64 ``[B]`` lengths.
        u: ``[B, g]`` independent uniforms in [0, 1).
        E: float32 ``[B, V]`` exponential noise of the token drawn.

    Returns:
        (kept, next token), int64 ``[B]`` each.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    px, qx = row_probability(P[:, :-1], x), row_probability(Q, x)
    h = tokenwise_thresholds(log_ratios(px, qx), n)
    kept = (u < h).long().cumprod(dim=-1).sum(dim=-1)
    return kept, emit(P, Q, kept, n, torch.ones(len(n), device=P.device), E)


def tokenwise_stop(chain: Chain) -> tuple[int, float]:
    """Kept tokens of one chain, and the ratio 1 that the residual P - Q has there."""
    px = row_probability(chain.rows[:-1], chain.tokens).tolist()
    qx = chain.law.probability_of(chain.tokens).tolist()
    uniforms = [0.0] * chain.n if chain.uniforms is None else chain.uniforms.tolist()
    kept = 0
    while kept < chain.n and uniforms[kept] < px[kept] / qx[kept]:
        kept += 1
    return kept, 1.0


def tokenwise_chain(chain: Chain) -> Outcome:
    """Token-wise verification of one chain; reads no row of the vocabulary but the one that is drawn from."""
    return stopped(chain, *tokenwise_stop(chain))


def token(batch: VerifyBatch) -> list[Outcome]:
    """The token-wise rule on a batch of sparse or dense proposals.

    Raises:
        NumericalError: a row leaves nothing to draw.
        ValueError: a sequence has no draws and a row that is not one-hot.
    """
    return verify_chains(batch, tokenwise_chain, token_verify)
