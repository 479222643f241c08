"""What a verification rule gets and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ssd_cluster.sampling.coupled import NoiseRows
from ssd_cluster.types import Proposal


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one sequence's verification ended; the key of a speculation cache.

    Attributes:
        kept: number of proposed tokens that stay, from 0 to the number proposed.
        next_token: the token after them (t*), drawn from the target.
    """

    kept: int
    next_token: int


@dataclass(frozen=True, slots=True)
class VerifyBatch:
    """B sequences of one round; sequence b proposed n_b tokens, n_b = 0 for a plain step.

    Rows of all sequences lie one after the other, n_b + 1 for each: row t of a sequence is the target's law of the
    token that follows the committed tokens and its first t proposed ones. T = sum(n_b + 1).

    The equality rule needs no more than this. Rules that test ratios also need, per sequence, the rows q that its
    proposal was sampled from (they belong to the proposal, whose kind promises them) and uniforms of a key that never
    leaves the target; both will be fields here when the first such rule is.

    Attributes:
        proposals: B proposals; the kind of each chooses its rule.
        probs: float32 ``[T, V]``, processed target rows.
        noise: E of the T rows, at each row's absolute position; None where the row is greedy.

    Raises:
        ValueError: the number of rows is not T.
    """

    proposals: Sequence[Proposal]
    probs: Tensor
    noise: NoiseRows

    def __post_init__(self) -> None:
        wanted = sum(len(p.tokens) + 1 for p in self.proposals)
        if self.probs.shape[0] != wanted or len(self.noise) != wanted:
            raise ValueError(f"{wanted} rows needed, got probs {self.probs.shape[0]} and noise {len(self.noise)}")
