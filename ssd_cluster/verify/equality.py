"""The equality rule (verification.md section 2): keep proposed tokens while they equal what the target draws.

y_i is the plain sample of position i for the request's seed, so the emitted text does not depend on the proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ssd_cluster.sampling.coupled import coupled_sample, winner
from ssd_cluster.verify.batch import Outcome, VerifyBatch


def match_drawn(proposals: Sequence[Sequence[int]], draw: Callable[[int], int]) -> list[Outcome]:
    """Outcomes of a ragged batch whose rows are drawn one by one.

    Args:
        proposals: proposed tokens x of B sequences, n_b each.
        draw: row of the batch, in [0, sum(n_b + 1)), to what the target draws there. Called for a sequence's rows up to
            the first that differs from the proposal; nothing behind it counts.
    """
    outcomes, base = [], 0
    for x in proposals:
        kept, drawn = 0, draw(base)
        while kept < len(x) and drawn == x[kept]:
            kept += 1
            drawn = draw(base + kept)
        outcomes.append(Outcome(kept, drawn))
        base += len(x) + 1
    return outcomes


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
    wanted = sum(len(x) + 1 for x in proposals)
    if len(sampled) != wanted:
        raise ValueError(f"{wanted} draws needed, got {len(sampled)}")
    return match_drawn(proposals, sampled.__getitem__)


def equality(batch: VerifyBatch) -> list[Outcome]:
    """Draw the rows of the batch and match; lossless for any proposal, at any temperature.

    On a CPU a row is drawn only if the ones before it agree, on other devices all are drawn at once.

    Raises:
        NumericalError: a row that is drawn leaves nothing to draw.
    """
    proposed = [proposal.tokens for proposal in batch.proposals]
    if batch.probs.device.type != "cpu":
        return match(proposed, coupled_sample(batch.probs, batch.noise).tolist())
    return match_drawn(proposed, lambda row: winner(batch.probs[row], batch.noise[row], batch.kernels))
