"""Several drafts of one round by recursive rejection, with token-wise or block verification (capped HSD) inside.

The kept prefix starts empty, the row pt at P_root. Each further draft that agrees with the kept prefix and whose next
node was not tested before is verified against the rows [pt, P ...]: what it keeps extends the prefix, and the residual
where it stops becomes pt. With block verification inside, rho restarts at 1 for every draft; carrying it on, as the
code released with the HSD paper does, is not lossless. What is left in the end is drawn from pt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ssd_cluster.verify.block import block_stop
from ssd_cluster.verify.chain import Chain, race
from ssd_cluster.verify.paths import PathOutcome
from ssd_cluster.verify.tokenwise import tokenwise_stop

Stop = Callable[[Chain], tuple[int, float]]
"""(kept tokens, prefix ratio there) of a chain."""


def multidraft(drafts: Sequence[Chain], noise: Tensor | None, stop: Stop) -> PathOutcome:
    """Verify drafts that all follow the same committed tokens, in the order in which they were drawn.

    Args:
        drafts: at least one; each with P and Q along its own path and uniforms of its own. Their tokens are independent
            draws from q, or drawn without replacement among siblings, or not random (rows of Q then are point masses).
            In each case the law of a draft's first new token is its Q without the tokens tested at that place.
        noise: E of the token drawn, float32 ``[V]``; None for rows that are one-hot.
        stop: the rule inside.

    Raises:
        ValueError: there is no draft.
        NumericalError: a row leaves nothing to draw.
    """
    if not drafts:
        raise ValueError("a verification of several drafts needs at least one")
    prefix: tuple[int, ...] = ()
    row = drafts[0].rows[0]
    tested: set[int] = set()
    for draft in drafts:
        tokens = tuple(draft.tokens.tolist())
        n = len(prefix)
        if tokens[:n] != prefix or len(tokens) == n or tokens[n] in tested:
            continue
        rest = _rest(draft, n, row, sorted(tested))
        kept, rho = stop(rest)
        prefix += tokens[n : n + kept]
        if kept == rest.n:
            row = rest.rows[kept]
            break
        tested = tested if kept == 0 else set()
        tested.add(tokens[n + kept])
        residual = rest.law.residual(kept, rho, rest.rows[kept])
        mass = residual.sum(dtype=torch.float64)
        row = (residual / mass).to(row.dtype) if float(mass) > 0 else rest.rows[kept]
    return PathOutcome(prefix, race(row, noise, row))


def _rest(draft: Chain, n: int, row: Tensor, tested: list[int]) -> Chain:
    """What is left of a draft behind ``n`` kept tokens, with ``row`` in place of the first target row."""
    rows = torch.cat([row.unsqueeze(0), draft.rows[n + 1 :]])
    uniforms = None if draft.uniforms is None else draft.uniforms[n:]
    return Chain(rows, draft.law.tail(n).without(tested), draft.tokens[n:], uniforms)


def multidraft_tokenwise(drafts: Sequence[Chain], noise: Tensor | None) -> PathOutcome:
    """Recursive rejection sampling with the token-wise rule inside; see :func:`multidraft`."""
    return multidraft(drafts, noise, tokenwise_stop)


def multidraft_hsd(drafts: Sequence[Chain], noise: Tensor | None) -> PathOutcome:
    """Recursive rejection sampling with block verification (capped HSD) inside; see :func:`multidraft`."""
    return multidraft(drafts, noise, block_stop)
