"""Torch reference of the two rules; any device. Shapes and semantics as in :mod:`ssd_kernels.verification.api`.

Only rows below a sequence's length are looked at, whatever the padding holds. Nothing of size [B, g, V] is formed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def block_verify(P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.verification.block_verify`."""
    g = Q.shape[1]
    log_rho = _log_rho(P, Q, x, n)
    h = torch.zeros_like(log_rho)
    for t in range(1, g):
        weight = log_rho[:, t : t + 1].exp()
        mass = (weight * P[:, t] - Q[:, t]).relu_().sum(-1)
        missing = -torch.expm1(log_rho[:, t])
        total = mass + missing
        h[:, t] = torch.where(total <= 0, 1.0, mass / total)
    steps = torch.arange(g + 1, device=P.device)
    h = torch.where(steps == n[:, None], log_rho.exp(), h).masked_fill(steps > n[:, None], 0.0)
    stays = torch.cat([torch.ones_like(u[:, :1], dtype=torch.bool), u < h[:, 1:]], dim=1) if g else steps[None] == 0
    kept = torch.where(stays, steps, 0).amax(-1).expand(len(n))
    return kept, _next_token(P, Q, n, kept, log_rho.gather(1, kept[:, None]).exp(), E)


def token_verify(P: Tensor, Q: Tensor, x: Tensor, n: Tensor, u: Tensor, E: Tensor) -> tuple[Tensor, Tensor]:
    """See :func:`ssd_kernels.verification.token_verify`."""
    p, q = _drafted(P, Q, x, n)
    fails = ~(u < p / q)
    steps = torch.arange(Q.shape[1], device=P.device).expand(len(n), -1)
    kept = torch.where(fails & (steps < n[:, None]), steps, n[:, None])
    kept = torch.cat([kept, n[:, None]], dim=1).amin(-1)
    return kept, _next_token(P, Q, n, kept, torch.ones_like(E[:, :1]), E)


def _drafted(P: Tensor, Q: Tensor, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """(P_t[x_{t+1}], Q_t[x_{t+1}]), each [B, g]; 1 beyond a sequence's length."""
    g = Q.shape[1]
    beyond = torch.arange(g, device=P.device) >= n[:, None]
    index = x.masked_fill(beyond, 0).unsqueeze(-1)
    p, q = (rows.gather(-1, index).squeeze(-1).masked_fill(beyond, 1.0) for rows in (P[:, :g], Q))
    return p, q


def _log_rho(P: Tensor, Q: Tensor, x: Tensor, n: Tensor) -> Tensor:
    """log rho_t, [B, g + 1]: rho_t = min(1, rho_{t-1} r_t); once 0, it stays 0."""
    p, q = _drafted(P, Q, x, n)
    log_ratio = torch.where((p > 0) & (q >= 0), p.log() - q.log(), -math.inf)
    columns = [torch.zeros_like(P[:, 0, 0])]
    for step in log_ratio.unbind(1):
        gone = columns[-1].isneginf() | step.isneginf()
        columns.append((columns[-1] + step).clamp(max=0.0).masked_fill(gone, -math.inf))
    return torch.stack(columns, dim=1)


def _next_token(P: Tensor, Q: Tensor, n: Tensor, kept: Tensor, rho: Tensor, E: Tensor) -> Tensor:
    """Winner of the race over (rho P - Q)+ at the stop, over P after full acceptance or where that is empty."""
    rows = torch.arange(len(n), device=P.device)
    law = P[rows, kept]
    if Q.shape[1] == 0:
        return race(law, E)
    draft = Q[rows, kept.clamp(max=Q.shape[1] - 1)]
    weights = torch.where((kept < n)[:, None], (rho * law - draft).relu_(), law)
    found = race(weights, E)
    return torch.where(found < 0, race(law, E), found)


def race(weights: Tensor, E: Tensor) -> Tensor:
    """argmin E / weights per row [R, V], lowest id among equals; -1 where no weight is positive."""
    quotients = torch.where(weights > 0, E / weights, math.inf)
    winners = quotients.argmin(-1)
    return winners.masked_fill(quotients.gather(-1, winners[:, None])[:, 0].isinf(), -1)
