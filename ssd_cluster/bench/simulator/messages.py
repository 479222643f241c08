"""What the simulated target and draft tell each other: the draft link's messages without their tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ssd_cluster.types import LookupResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the verification of ``n`` proposed tokens ended: ``kept`` of them, then t* at ``rank`` among the guesses."""

    n: int
    kept: int
    rank: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Progress of one sequence.

    Attributes:
        sequence: which one.
        target: whose.
        round: names this commit and the block that answers it.
        outcome: of the verification before; None at the start and where only the proposal is new.
        n: proposed tokens that are verified now; None: a chain is waited for.
        k, rows: ceilings of the answer; rows = 0 asks for none.
        due_s: from receipt until the block must leave: the expected verification less a round trip.
        pull_s, deadline_s: with a wait: when the target asks for what exists of the chain, and when it goes on without.
    """

    sequence: int
    target: int
    round: int
    outcome: Outcome | None
    n: int | None
    k: int
    rows: int
    due_s: float
    pull_s: float = math.inf
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Block:
    """Answer to one commit.

    Attributes:
        depths: drafted tokens behind each guess, by kept length and rank.
        chain: tokens of a just-in-time chain; 0 in a block of guesses.
    """

    sequence: int
    round: int
    depths: tuple[tuple[int, ...], ...] = ()
    chain: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Branches and drafted tokens."""
        if self.chain:
            return 1, self.chain
        return sum(map(len, self.depths)), sum(map(sum, self.depths))

    def look_up(self, outcome: Outcome, k: int) -> tuple[LookupResult, int]:
        """How the lookup of an outcome goes, and the length of the proposal that it gives."""
        guesses = self.depths[outcome.kept] if outcome.kept < len(self.depths) else ()
        if outcome.rank >= len(guesses):
            return LookupResult.MISS, 0
        depth = min(k, guesses[outcome.rank])
        return (LookupResult.HIT, depth) if depth else (LookupResult.LATE, 0)
