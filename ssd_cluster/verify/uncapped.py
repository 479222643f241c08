"""HSD as the code released with the paper has it: the last position is accepted by the uncapped ratio. NOT lossless.

Only to reproduce the published table, whose margin over block verification is of the size of this error. With V = 2,
two drafted tokens, p = (2/3, 1/3) and q = (1/2, 1/2) the text AA comes out with probability 7/18 instead of 4/9. No
configuration can choose it.
"""

from __future__ import annotations

import math

from ssd_cluster.verify.batch import Outcome, VerifyBatch
from ssd_cluster.verify.block import last_kept, log_walk
from ssd_cluster.verify.chain import Chain, capped_log_prefix, chains, stopped


def uncapped_chain(chain: Chain) -> Outcome:
    """As :func:`ssd_cluster.verify.block.block_chain`, but h_n = min(1, r_1 ... r_n)."""
    walk = log_walk(chain)
    log_rho = capped_log_prefix(walk).tolist()
    kept = last_kept(chain, log_rho, math.exp(min(0.0, float(walk.sum()))))
    return stopped(chain, kept, math.exp(log_rho[kept]))


def hsd_uncapped_lossy(batch: VerifyBatch) -> list[Outcome]:
    """The released variant on a batch of sparse or dense proposals; changes the law of the text.

    Raises:
        NumericalError: a row leaves nothing to draw.
        ValueError: a sequence has no draws and a row that is not one-hot.
    """
    return [uncapped_chain(chain) for chain in chains(batch)]
