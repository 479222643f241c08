"""Learning from outcomes and planning the next tree: which (k, t*) get a branch, and what each is worth."""

from __future__ import annotations

import math

from ssd_cluster.config import FanoutLaw
from ssd_cluster.draft.builds import BranchBuild, TreeBuild
from ssd_cluster.draft.session import Session
from ssd_cluster.draft.transcript import Outcome
from ssd_cluster.speculation.fanout import make_planner
from ssd_cluster.speculation.statistics import OutcomeStatistics, StatisticsBook
from ssd_cluster.types import shard_of

_LEAST_P = 1e-6


class OutcomeObserver:
    """Outcome statistics of all targets, and the planner that uses them.

    Args:
        law: fan-out law.
    """

    def __init__(self, law: FanoutLaw) -> None:
        self._planner = make_planner(law)
        self._book = StatisticsBook()

    def statistics(self, session: Session) -> OutcomeStatistics:
        """The statistics that a session shares with those of the same target, kind and temperature bucket."""
        return self._book.of(session.peer.target_id, session.kind, session.sampling.temperature)

    def observe(self, session: Session, outcome: Outcome) -> None:
        """Count an outcome; call before the session's work for that round is dropped."""
        build = session.build
        rank, guesses = None, []
        if isinstance(build, TreeBuild) and (build.base_len, build.proposal) == (outcome.base_len, outcome.proposal):
            guesses = build.guesses[outcome.k] if outcome.k < len(build.guesses) else []
            rank = guesses.index(outcome.t_star) if outcome.t_star in guesses else None
        self.statistics(session).observe(len(outcome.proposal), outcome.k, rank, len(guesses) or None)

    def plan(self, session: Session, build: TreeBuild, rows: int) -> list[BranchBuild]:
        """Branches of a tree whose glue rows have run, the likeliest outcomes first.

        Args:
            session: whose tree it is.
            build: its guesses are set.
            rows: most branches.
        """
        n = len(build.proposal)
        statistics = self.statistics(session)
        ceilings = [0] * (n + 1)
        round_ = session.transcript.round
        for k, guesses in enumerate(build.guesses):
            ours = not session.lengths or k in session.lengths
            if ours and shard_of(k, n, round_.shards) == round_.shard:
                ceilings[k] = len(guesses)
        counts = self._planner.plan(rows, n, statistics, ceilings)
        kept = statistics.kept_probabilities(n)
        ranks = {full: statistics.rank_probabilities(full, max(counts, default=0)) for full in (False, True)}
        branches = []
        for k, count in enumerate(counts):
            room = session.max_len - (build.base_len + k + 1)
            for rank in range(count):
                p = max(_LEAST_P, kept[k] * ranks[k == n][rank])
                branches.append(BranchBuild(k, build.guesses[k][rank], math.log(p), min(build.k, room)))
        branches.sort(key=lambda branch: -branch.log_p)
        survival = [1.0]
        for position in range(build.k):
            survival.append(survival[-1] * statistics.acceptance_at(position))
        build.survival = survival[1:]
        return branches
