"""What the ratio rules for one chain share: prefix ratios, the residual draw, and how a batch becomes chains.

Names as in the HSD paper and verification.md section 3: P_t, Q_t rows after t proposed tokens, r_t = P_{t-1}(x_t) /
Q_{t-1}(x_t), rho_t = min(1, rho_{t-1} r_t), tau kept tokens. Shapes: B sequences, g the largest number of proposed
tokens, V ids; sequence b proposes n_b <= g tokens, what lies behind them in padded tensors is never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_cluster.errors import NumericalError
from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.laws import DraftLaw, SparseLaw


@dataclass(frozen=True, slots=True)
class Chain:
    """One sequence's verification under a ratio rule.

    Attributes:
        rows: P, float32 ``[n + 1, V]``.
        law: Q, n rows.
        tokens: x, int64 ``[n]``.
        uniforms: u_1..u_n, float32 ``[n]``; None for rows that are one-hot, where they decide nothing.
        noise: E of the token that follows the kept ones, float32 ``[V]``; None for rows that are one-hot.
        refused: the law that came was not used because it does not belong to the tokens.
    """

    rows: Tensor
    law: DraftLaw
    tokens: Tensor
    uniforms: Tensor | None = None
    noise: Tensor | None = None
    refused: bool = False

    @property
    def n(self) -> int:
        """Number of proposed tokens."""
        return self.tokens.shape[0]


def row_probability(rows: Tensor, tokens: Tensor) -> Tensor:
    """P_t(x_{t+1}), ``[..., n]`` of rows ``[..., n, V]``; tokens in [0, V)."""
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def log_ratios(px: Tensor, qx: Tensor) -> Tensor:
    """log r_{t+1} = log P_t(x_{t+1}) - log Q_t(x_{t+1}), float64, shape of both; -inf where P_t(x_{t+1}) = 0."""
    return px.double().log() - qx.double().log()


def capped_log_prefix(log_ratio: Tensor) -> Tensor:
    """log rho_t of t = 0..g, float64 ``[..., g + 1]`` of log ratios ``[..., g]``: lrho_t = min(0, lrho_{t-1} + lr_t).

    Written as a walk minus its running maximum, where that is above 0; joint probabilities are never formed.
    """
    walk = torch.cat([log_ratio.new_zeros(*log_ratio.shape[:-1], 1), log_ratio.cumsum(-1)], -1)
    return walk - walk.cummax(-1).values


def largest_kept(h: Tensor, u: Tensor) -> Tensor:
    """tau, int64 ``[B]``: the largest t with t = 0 or u_t < h_t.

    Args:
        h: ``[B, g + 1]`` thresholds h_0..h_g, 0 behind n_b.
        u: ``[B, g]`` uniforms u_1..u_g in [0, 1).
    """
    steps = torch.arange(1, h.shape[1], device=h.device)
    return torch.where(u < h[:, 1:], steps, 0).amax(dim=-1) if h.shape[1] > 1 else h.new_zeros(len(h)).long()


def race(weights: Tensor, noise: Tensor | None, row: Tensor) -> int:
    """A token of ``weights`` ``[V]``, of ``row`` ``[V]`` where nothing weighs: argmin E / weight, lowest id.

    Nothing weighs only where p = q up to rounding and the rule stopped all the same (S_t = 0 with rho_t = 1).

    Raises:
        NumericalError: ``row`` leaves nothing to draw either.
    """
    for law in (weights, row):
        quotients = (law.reciprocal() if noise is None else noise / law).cpu().numpy()
        winner = int(quotients.argmin())
        if math.isfinite(quotients[winner]):
            return winner
    raise NumericalError("a row has no token with positive probability")


def race_rows(weights: Tensor, noise: Tensor, rows: Tensor) -> Tensor:
    """As :func:`race`, for ``[B, V]`` each; int64 ``[B]``.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    law = torch.where((weights > 0).any(dim=-1, keepdim=True), weights, rows)
    quotients = noise / law
    winners = quotients.argmin(dim=-1)
    if not bool(quotients.gather(-1, winners.unsqueeze(-1)).isfinite().all()):
        raise NumericalError("a row has no token with positive probability")
    return winners


def residual_rows(P: Tensor, Q: Tensor, kept: Tensor, n: Tensor, rho: Tensor) -> Tensor:
    """Weights of the token after the kept ones: (rho_tau P_tau - Q_tau)+ where tau < n_b, P_n behind a whole chain.

    Args:
        P, Q: ``[B, g + 1, V]`` and ``[B, g, V]``.
        kept, n: int64 ``[B]``.
        rho: ``[B]``, the prefix ratio at tau (1 for the token-wise rule).

    Returns:
        ``[B, V]``, not normalised.
    """
    index = torch.arange(len(kept), device=kept.device)
    row = P[index, kept]
    if Q.shape[1] == 0:
        return row
    subtracted = Q[index, kept.clamp(max=Q.shape[1] - 1)]
    residual = (rho.to(row.dtype).unsqueeze(-1) * row - subtracted).clamp_(min=0.0)
    return torch.where((kept < n).unsqueeze(-1), residual, row)


def emit(P: Tensor, Q: Tensor, kept: Tensor, n: Tensor, rho: Tensor, E: Tensor) -> Tensor:
    """The token after the kept ones, int64 ``[B]``; E ``[B, V]``, else as for :func:`residual_rows`."""
    rows = P[torch.arange(len(kept), device=kept.device), kept]
    return race_rows(residual_rows(P, Q, kept, n, rho), E, rows)


def stopped(chain: Chain, kept: int, rho: float) -> Outcome:
    """The outcome of a chain of which ``kept`` tokens stay; ``rho`` is the prefix ratio there (1: token-wise)."""
    row = chain.rows[kept]
    weights = row if kept == chain.n else chain.law.residual(kept, rho, row)
    return Outcome(kept, race(weights, chain.noise, row), law_refused=chain.refused)


def chains(batch: VerifyBatch) -> Iterator[Chain]:
    """The sequences of a batch as chains.

    Without a law (it came too late) a proposal is verified as a point mass on its tokens, which is exact for tokens of
    any origin; so is one whose law has too few rows or gives a drafted token no probability: that law is not what the
    tokens were drawn from. A chain ends before a token outside the vocabulary, which cannot be kept.

    Raises:
        ValueError: a sequence has no draws and a row that is not one-hot.
    """
    start, vocabulary = 0, batch.probs.shape[1]
    for b, proposal in enumerate(batch.proposals):
        n = next((t for t, x in enumerate(proposal.tokens) if not 0 <= x < vocabulary), len(proposal.tokens))
        rows = batch.probs[start : start + n + 1]
        start += len(proposal.tokens) + 1
        draws = batch.draws[b] if batch.draws else None
        if draws is None and bool((rows.amax(dim=-1) < 1).any()):
            raise ValueError(f"proposal {b} needs draws: its rows are not one-hot")
        tokens = torch.tensor(proposal.tokens[:n], dtype=torch.int64, device=rows.device)
        law = batch.laws[b] if batch.laws else None
        fits = law is not None and law.n >= n and bool((law.head(n).probability_of(tokens) > 0).all())
        yield Chain(
            rows,
            law.head(n) if law is not None and fits else SparseLaw.point_mass(tokens),
            tokens,
            None if draws is None else draws.accept(n),
            None if draws is None else draws.residual(draws.base),
            refused=law is not None and not fits,
        )


Padded = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""A rule on padded tensors: (P [B, g+1, V], Q [B, g, V], x [B, g], n [B], u [B, g], E [B, V]) -> (kept, next) [B]."""


def verify_chains(batch: VerifyBatch, one: Callable[[Chain], Outcome], kernel: Padded) -> list[Outcome]:
    """Outcomes of a batch: on a CPU chain by chain, where nothing is copied, elsewhere in one call of a kernel.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    listed = list(chains(batch))
    if not listed or chain_by_chain(batch.probs.device):
        return [one(chain) for chain in listed]
    return verify_padded(listed, kernel)


def chain_by_chain(device: torch.device) -> bool:
    """Whether sequences are better verified one after the other than in one padded batch."""
    return device.type == "cpu"


def verify_padded(listed: list[Chain], kernel: Padded) -> list[Outcome]:
    """Outcomes of at least one chain by a kernel of ``ssd_kernels.verification``.

    Raises:
        NumericalError: a row leaves nothing to draw; the kernel says so with a next token of -1.
    """
    kept, following = torch.stack(kernel(*pad(listed))).tolist()
    if min(following) < 0:
        raise NumericalError("a row has no token with positive probability")
    return [Outcome(k, t, law_refused=chain.refused) for chain, k, t in zip(listed, kept, following, strict=True)]


def pad(listed: list[Chain]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """P, Q, x, n, u and E of chains, padded to the longest; see :data:`Padded`."""
    size, g = len(listed), max(chain.n for chain in listed)
    like = listed[0].rows
    vocabulary = like.shape[1]
    P, Q = like.new_zeros(size, g + 1, vocabulary), like.new_zeros(size, g, vocabulary)
    x, u = torch.zeros(size, g, dtype=torch.int64, device=like.device), like.new_zeros(size, g)
    E = like.new_ones(size, vocabulary)
    for b, chain in enumerate(listed):
        P[b, : chain.n + 1], Q[b, : chain.n] = chain.rows, chain.law.dense(vocabulary)
        x[b, : chain.n] = chain.tokens
        if chain.uniforms is not None:
            u[b, : chain.n] = chain.uniforms
        if chain.noise is not None:
            E[b] = chain.noise
    return P, Q, x, torch.tensor([chain.n for chain in listed], device=like.device), u, E
