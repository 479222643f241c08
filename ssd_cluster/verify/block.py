"""Block verification (Sun et al., arXiv 2403.10444), which is capped HSD (ICLR 2026, equations 19-20): one function.

rho_0 = 1, rho_t = min(1, rho_{t-1} r_t); S_t = sum_y (rho_t P_t(y) - Q_t(y))+. h_0 = 1; h_t = S_t / (S_t + 1 - rho_t)
for 0 < t < n; h_n = rho_n. tau is the largest t with t = 0 or u_t < h_t; the next token is drawn from (rho_tau P_tau -
Q_tau)+ / S_tau if tau < n, else from P_n. P(tau >= t) = E[rho_t]; nothing is carried to the next round.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from ssd_kernels.verification import block_verify
from torch import Tensor

from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.chain import (
    Chain,
    capped_log_prefix,
    emit,
    largest_kept,
    log_ratios,
    row_probability,
    stopped,
    verify_chains,
)
from ssd_cluster.verify.laws import SparseLaw, positive_mass


def threshold(excess: float, log_rho: float) -> float:
    """h_t = S_t / (S_t + 1 - rho_t); 1 where both are 0 (p = q)."""
    missing = -math.expm1(log_rho)
    return excess / (excess + missing) if excess + missing > 0 else 1.0


def block_thresholds(log_rho: Tensor, S: Tensor, n: Tensor) -> Tensor:
    """h_0..h_g, float64 ``[B, g + 1]``, 0 behind n_b.

    Args:
        log_rho: float64 ``[B, g + 1]``, :func:`ssd_cluster.verify.chain.capped_log_prefix`.
        S: float64 ``[B, g]``, :func:`ssd_cluster.verify.laws.positive_mass`.
        n: int64 ``[B]``.
    """
    denominator = S - torch.expm1(log_rho[:, :-1])
    inner = torch.where(denominator > 0, S / denominator, 1.0)
    t = torch.arange(log_rho.shape[1], device=n.device)
    h = torch.where(t == n.unsqueeze(1), log_rho.exp(), torch.cat([inner, inner.new_zeros(len(n), 1)], -1))
    return h.masked_fill(t > n.unsqueeze(1), 0.0).masked_fill(t == 0, 1.0)


def block_rows(P: Tensor, Q: Tensor, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Thresholds h and prefix ratios rho, float64 ``[B, g + 1]`` each; arguments as for :func:`block_core`.

    Behind n_b the entries of rho mean nothing.
    """
    log_rho = capped_log_prefix(log_ratios(row_probability(P[:, :-1], x), row_probability(Q, x)))
    rho = log_rho.exp()
    return block_thresholds(log_rho, positive_mass(rho[:, :-1], P[:, :-1], Q), n), rho


def block_core(P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """Block verification of B padded chains.

    Args:
        P: float32 ``[B, g + 1, V]`` target rows.
        Q: float32 ``[B, g, V]`` draft rows; Q_t(x_{t+1}) > 0.
        x: int64 ``[B, g]`` proposed tokens.
        n: int64 ``[B]`` lengths.
        u: ``[B, g]`` independent uniforms u_1..u_g in [0, 1).
        E: float32 ``[B, V]`` exponential noise of the token drawn.

    Returns:
        (kept, next token), int64 ``[B]`` each.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    h, rho = block_rows(P, Q, x, n)
    kept = largest_kept(h, u)
    return kept, emit(P, Q, kept, n, rho.gather(1, kept.unsqueeze(1)).squeeze(1), E)


def log_walk(chain: Chain) -> Tensor:
    """log r_1..log r_n of a chain, float64 ``[n]``."""
    return log_ratios(row_probability(chain.rows[:-1], chain.tokens), chain.law.probability_of(chain.tokens))


def inner_thresholds(chain: Chain, log_rho: list[float]) -> Callable[[int], float]:
    """h_t as a function of t, 0 < t < n.

    A sparse law gives all S_t at once; a dense one sums a row only when h_t is asked for and rho_t lies between 0 and
    1, since at both ends h_t = rho_t.
    """
    rho = torch.tensor(log_rho[:-1], dtype=torch.float64, device=chain.rows.device).exp_()
    every = chain.law.excess(rho, chain.rows[:-1]).tolist() if isinstance(chain.law, SparseLaw) else None

    def h(t: int) -> float:
        if log_rho[t] in (0.0, -math.inf):
            return math.exp(log_rho[t])
        if every is not None:
            return threshold(every[t], log_rho[t])
        return threshold(float(chain.law.row(t).excess(rho[t : t + 1], chain.rows[t : t + 1])), log_rho[t])

    return h


def last_kept(chain: Chain, log_rho: list[float], last: float) -> int:
    """tau of one chain, found from its end.

    Args:
        chain: n proposed tokens.
        log_rho: log rho_0..log rho_n.
        last: h_n.
    """
    uniforms = [0.0] * chain.n if chain.uniforms is None else chain.uniforms.tolist()
    if chain.n == 0 or uniforms[-1] < last:
        return chain.n
    h = inner_thresholds(chain, log_rho)
    return next((t for t in range(chain.n - 1, 0, -1) if uniforms[t - 1] < h(t)), 0)


def block_stop(chain: Chain) -> tuple[int, float]:
    """(tau, rho_tau) of one chain."""
    log_rho = capped_log_prefix(log_walk(chain)).tolist()
    kept = last_kept(chain, log_rho, math.exp(log_rho[-1]))
    return kept, math.exp(log_rho[kept])


def block_chain(chain: Chain) -> Outcome:
    """Block verification of one chain; lossless."""
    return stopped(chain, *block_stop(chain))


def block(batch: VerifyBatch) -> list[Outcome]:
    """Block verification, alias capped HSD, on a batch of sparse or dense proposals.

    Raises:
        NumericalError: a row leaves nothing to draw.
        ValueError: a sequence has no draws and a row that is not one-hot.
    """
    return verify_chains(batch, block_chain, block_verify)
