"""SAGUARO sampling (Kumar et al. 2026): q lowered on the tokens that will be guessed.

sigma_{F,C}(z)_t is proportional to C exp(z_t) for the F likeliest tokens t, and to exp(z_t) for the others. The
residual (p - q)+ then concentrates on those F, so that more outcomes are among the guesses, and fewer drafted tokens
are kept. For ratio rules only, and what is sent to the target as q is sigma.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def reshape(q: npt.NDArray[np.float32], c: float, f: int) -> None:
    """Scale the ``f`` likeliest entries of each row by ``c``, in place; rows are not normalised afterwards.

    Args:
        q: ``[n, m]``, not negative. A row whose whole mass lies on its ``f`` likeliest entries stays as it is at c = 0,
            where nothing would be left to draw.
        c: in [0, 1].
        f: at least 0.
    """
    if c >= 1 or f < 1:
        return
    f = min(f, q.shape[1])
    best = np.argpartition(-q, f - 1, axis=1)[:, :f]
    factors = np.ones_like(q)
    np.put_along_axis(factors, best, np.float32(c), axis=1)
    reshaped = q * factors
    alive = reshaped.sum(axis=1) > 0
    q[alive] = reshaped[alive]
