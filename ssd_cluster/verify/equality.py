"""The equality rule (verification.md section 2): keep proposed tokens while they equal what the target draws.

y_i is the plain sample of position i for the request's seed, so the emitted text does not depend on the proposal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ssd_cluster.sampling.coupled import coupled_sample, winner
from ssd_cluster.verify.batch import Outcome, VerifyBatch


def match_drawn(proposed: Sequence[int], draw: Callable[[int], int]) -> Outcome:
    """The outcome of one sequence: ``draw(t)`` is what the target draws behind t proposed tokens.

    Called for t = 0, 1, ... up to the first draw that differs from ``proposed[t]``; nothing behind it counts.
    """
    for kept, token in enumerate(proposed):
        drawn = draw(kept)
        if drawn != token:
            return Outcome(kept, drawn)
    return Outcome(len(proposed), draw(len(proposed)))


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
    outcomes, base = [], 0
    for x in proposals:
        outcomes.append(match_drawn(x, sampled[base : base + len(x) + 1].__getitem__))
        base += len(x) + 1
    return outcomes


def equality(batch: VerifyBatch) -> list[Outcome]:
    """Draw the rows of the batch and match; lossless for any proposal, at any temperature.

    On a CPU a row is drawn only if the ones before it agree, on other devices all are drawn at once.

    Raises:
        NumericalError: a row that is drawn leaves nothing to draw.
    """
    if batch.probs.device.type != "cpu":
        return match([p.tokens for p in batch.proposals], coupled_sample(batch.probs, batch.noise).tolist())
    outcomes, base = [], 0
    for proposal in batch.proposals:

        def draw(t: int, base: int = base) -> int:
            return winner(batch.probs[base + t], batch.noise[base + t], batch.kernels)

        outcomes.append(match_drawn(proposal.tokens, draw))
        base += len(proposal.tokens) + 1
    return outcomes
