"""The equality rule (verification.md section 2): keep proposed tokens while they equal what the target draws.

y_i is the plain sample of position i for the request's seed, so the emitted text does not depend on the proposal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.verify.batch import Outcome, VerifyBatch


def match(proposals: Sequence[Sequence[int]], sampled: Sequence[int]) -> list[Outcome]:
    """Outcomes of a ragged batch from the target's own draws.

    Args:
        proposals: proposed tokens x of B sequences, n_b each.
        sampled: the T = sum(n_b + 1) draws y, sequence after sequence.

    Returns:
        B outcomes: the length of the longest common prefix of x and y, and the y that follows it.

    Raises:
        ValueError: ``sampled`` has not T entries.
    """
    lengths = np.array([len(x) + 1 for x in proposals], dtype=np.int64)
    if len(sampled) != lengths.sum():
        raise ValueError(f"{lengths.sum()} draws needed, got {len(sampled)}")
    if not proposals:
        return []
    ends = np.cumsum(lengths)
    starts = ends - lengths
    draws = np.array(sampled, dtype=np.int64)
    # -1 behind each proposal differs from every draw: the first difference is at most the bonus row.
    proposed = np.array([t for x in proposals for t in (*x, -1)], dtype=np.int64)
    rows = np.arange(draws.shape[0])
    first_difference = np.minimum.reduceat(np.where(proposed != draws, rows, draws.shape[0]), starts)
    kept = first_difference - starts
    following = draws[first_difference]
    return [Outcome(int(k), int(t)) for k, t in zip(kept, following, strict=True)]


def equality(batch: VerifyBatch) -> list[Outcome]:
    """Draw every row of the batch and match; lossless for any proposal, at any temperature.

    Raises:
        NumericalError: a row leaves nothing to draw.
    """
    return match([p.tokens for p in batch.proposals], coupled_sample(batch.probs, batch.noise).tolist())
