"""Work in progress on the simulated draft: trees and chains, as rows and depths without tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ssd_cluster.bench.simulator.messages import Block, Outcome
from ssd_cluster.speculation.fanout import FanoutPlanner
from ssd_cluster.speculation.statistics import OutcomeStatistics


@dataclass(slots=True, eq=False)
class Branch:
    """One guessed outcome; ``p``: its estimated probability, ``depth``: tokens drafted behind it."""

    k: int
    rank: int
    p: float
    depth: int = 0


@dataclass(slots=True, eq=False)
class Tree:
    """Guesses for one round: a glue span over the proposal, then one row per branch and depth.

    ``due_s``: virtual time at which the block is wanted. ``pushed``: tokens in the newest block; None if none left.
    """

    sequence: int
    round: int
    n: int
    k: int
    rows: int
    due_s: float
    branches: list[Branch] | None = None
    live: list[Branch] = field(default_factory=list)
    survival: Sequence[float] = ()
    size: int = 0
    pushed: int | None = None

    @property
    def done(self) -> bool:
        return self.branches is not None and not self.live

    def plant(self, planner: FanoutPlanner, statistics: OutcomeStatistics, rows: int) -> None:
        """The glue rows have run: choose ``rows`` branches, as the draft engine does."""
        counts = planner.plan(rows, self.n, statistics, self.rows)
        kept = statistics.kept_probabilities(self.n)
        most = max(counts, default=0)
        ranks = {full: statistics.rank_probabilities(full, most) for full in (False, True)}
        self.branches = [
            Branch(k, rank, kept[k] * ranks[k == self.n][rank])
            for k, count in enumerate(counts)
            for rank in range(count)
        ]
        self.live = sorted(self.branches, key=lambda branch: -branch.p)
        survival = [1.0]
        for position in range(self.k):
            survival.append(survival[-1] * statistics.acceptance_at(position))
        self.survival = survival[1:]

    def grow(self, rows: int) -> None:
        """A step has run ``rows`` rows: the branches of highest gain have one token more."""
        chosen = self.live if rows >= len(self.live) else sorted(self.live, key=self._gain)[:rows]
        for branch in chosen:
            branch.depth += 1
        self.size += len(chosen)
        self.live = [branch for branch in self.live if branch.depth < self.k]

    def _gain(self, branch: Branch) -> float:
        return -branch.p * self.survival[branch.depth]

    def block(self) -> Block:
        """What exists now."""
        depths: list[list[int]] = [[] for _ in range(self.n + 1)]
        for branch in self.branches or ():
            depths[branch.k].append(branch.depth)
        return Block(self.sequence, self.round, tuple(map(tuple, depths)))

    def carried(self, outcome: Outcome) -> int:
        """Tokens drafted behind the outcome that has come: a chain for it starts with them."""
        right = (b.depth for b in self.branches or () if (b.k, b.rank) == (outcome.kept, outcome.rank))
        return next(right, 0)


@dataclass(slots=True, eq=False)
class Chain:
    """A just-in-time chain: glue over what is not there yet, then one row per token.

    ``pull_s``: virtual time from which the target takes what exists; ``deadline_s``: it goes on without the chain.
    """

    sequence: int
    round: int
    limit: int
    pull_s: float = math.inf
    deadline_s: float = math.inf
    tokens: int = 0
    glued: bool = False
    pushed: bool = False

    @property
    def done(self) -> bool:
        return self.pushed or self.tokens >= self.limit

    def block(self) -> Block:
        return Block(self.sequence, self.round, chain=self.tokens)


Build = Tree | Chain
