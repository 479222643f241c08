"""What a verification rule gets and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ssd_kernels.cpu import CpuKernels
from torch import Tensor

from ssd_cluster.sampling.coupled import NoiseRows
from ssd_cluster.sampling.ratio_noise import RoundDraws
from ssd_cluster.types import Proposal
from ssd_cluster.verify.laws import DraftLaw


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one sequence's verification ended; the key of a speculation cache.

    Attributes:
        kept: number of proposed tokens that stay, from 0 to the number proposed.
        next_token: the token after them (t*), drawn from the target.
        law_refused: the law that came with the proposal gives a drafted token no probability, so the tokens were not
            drawn from it; the proposal was verified as a point mass. Worth a counter; not part of the outcome.
    """

    kept: int
    next_token: int
    law_refused: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class VerifyBatch:
    """B sequences of one round; sequence b proposed n_b tokens, n_b = 0 for a plain step.

    Rows of all sequences lie one after the other, n_b + 1 for each: row t of a sequence is the target's law of the
    token that follows the committed tokens and its first t proposed ones. T = sum(n_b + 1).

    The equality rule reads ``probs`` and ``noise``. The ratio rules read ``probs``, ``laws`` and ``draws``, for the
    sequences whose proposals' kind chooses such a rule; their noise rows may be None.

    Attributes:
        proposals: B proposals; the kind of each chooses its rule.
        probs: float32 ``[T, V]``, processed target rows.
        noise: E of the T rows, at each row's absolute position; None where the row is greedy.
        laws: the rows q that each proposal was drawn from, n_b or more; None where they are missing (a ratio rule then
            takes the proposal as a point mass). Empty: none has any.
        draws: uniforms and residual noise of each sequence's round; None where all its rows are greedy or no ratio rule
            is used. Empty: none has any.
        kernels: compiled functions for rows on a CPU; None: NumPy.

    Raises:
        ValueError: the number of rows is not T, or of laws or draws not B.
    """

    proposals: Sequence[Proposal]
    probs: Tensor
    noise: NoiseRows
    laws: Sequence[DraftLaw | None] = ()
    draws: Sequence[RoundDraws | None] = ()
    kernels: CpuKernels | None = None

    def __post_init__(self) -> None:
        wanted = sum(len(p.tokens) + 1 for p in self.proposals)
        if self.probs.shape[0] != wanted or len(self.noise) != wanted:
            raise ValueError(f"{wanted} rows needed, got probs {self.probs.shape[0]} and noise {len(self.noise)}")
        for name, listed in (("laws", self.laws), ("draws", self.draws)):
            if len(listed) not in (0, len(self.proposals)):
                raise ValueError(f"{len(self.proposals)} proposals, but {len(listed)} {name}")
