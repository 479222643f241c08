"""Naive HSD (HSD paper, algorithm 1): lossless, with up to g - 1 further target calls in a round. An ablation.

R_t = r_1 ... r_t uncapped, D_t = sum_y (R_t P_t - Q_t)+, E_t = sum_y (Q_t - R_t P_t)+; h_t = D_t / max(D_t, E_t) for
t < n, h_n = min(1, R_n); tau is the largest t with t = 0 or u_t < h_t. After tau < n the tokens up to the end of the
draft's chain are resampled one by one from (R_t P_t - Q_t)+, with target and draft rows on the resampled prefix.
D_t - E_t = R_t - 1, so h_t = 1 where R_t >= 1 and D_t / (D_t + 1 - R_t) below: block verification's form, uncapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ssd_cluster.verify.block import last_kept, log_walk
from ssd_cluster.verify.chain import Chain, race
from ssd_cluster.verify.laws import DraftLaw

LARGEST_LOG_RATIO = 69.0
"""Prefix ratios stop at 1e30: Q then is far below the last bit of R P wherever P can be drawn."""


@dataclass(frozen=True, slots=True)
class NaiveOutcome:
    """How a naive HSD verification ended.

    Attributes:
        kept: proposed tokens that stay.
        tokens: the drawn tokens that follow them: the resampled ones up to where the draft's chain ends, or the one
            token behind a chain that was kept whole.
        target_calls: target forwards that the resampling took.
    """

    kept: int
    tokens: tuple[int, ...]
    target_calls: int


def naive_hsd(
    chain: Chain,
    draft_law: Callable[[tuple[int, ...]], DraftLaw | None],
    target_row: Callable[[tuple[int, ...]], Tensor],
    noise: Callable[[int], Tensor | None],
) -> NaiveOutcome:
    """Verify one chain.

    Args:
        chain: rows, laws and uniforms of the proposed tokens; its noise is not used.
        draft_law: the draft's law, one row, after the given tokens (kept and resampled ones, after the committed); None
            where its chain would have ended there: at its full length, after an end token, or by its own policy.
        target_row: P, float32 ``[V]``, after the given tokens: one target forward.
        noise: E, float32 ``[V]``, of the t-th token of the round, t = 0.. ; None for rows that are one-hot.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    walk = [0.0, *log_walk(chain).cumsum(-1).tolist()]
    kept = last_kept(chain, [min(0.0, w) for w in walk], math.exp(min(0.0, walk[-1])))
    if kept == chain.n:
        row = chain.rows[kept]
        return NaiveOutcome(kept, (race(row, noise(kept), row),), 0)
    prefix = tuple(chain.tokens[:kept].tolist())
    law: DraftLaw | None = chain.law.row(kept)
    row, log_ratio, calls = chain.rows[kept], walk[kept], 0
    drawn: list[int] = []
    while law is not None:
        if drawn:
            row = target_row(prefix)
            calls += 1
        weights = law.residual(0, math.exp(min(log_ratio, LARGEST_LOG_RATIO)), row)
        token = race(weights, noise(len(prefix)), row)
        q = float(law.probability_of(chain.tokens.new_tensor([token]))[0])
        log_ratio += math.log(float(row[token])) - math.log(q) if q > 0 else math.inf
        drawn.append(token)
        prefix += (token,)
        law = draft_law(prefix)
    return NaiveOutcome(kept, tuple(drawn), calls)
