"""Outcomes of rounds and where t* stood among the draft's guesses; hit rates of any fan-out follow from them.

The next proposal is drawn from the same law whether the outcome was found in the cache or drafted after a miss, so the
rounds need not be run with a cache: each outcome is looked up among what the draft would have guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_cluster.bench.clusters import Counts
from ssd_cluster.bench.rules.decoding import Continuation, Round, RoundEnd, Watcher
from ssd_cluster.bench.rules.plan import record_of
from ssd_cluster.speculation.fanout import FanoutPlanner
from ssd_cluster.speculation.statistics import OutcomeStatistics

NOT_NAMED = -1
"""Rank of a t* that the draft cannot name."""

Outcome = tuple[int, int, int]
"""(tokens proposed, tokens kept, rank of t* among the guesses for that length or ``NOT_NAMED``)."""


class OutcomeLog:
    """Collects the outcomes of a continuation; rounds behind which nothing follows are not looked up."""

    def __init__(self, *, coupled: bool) -> None:
        self.outcomes: list[Outcome] = []
        self._coupled = coupled

    def watcher(self) -> Watcher:
        """To be called with every round before it is committed."""
        return self._watch

    def _watch(self, state: Round, end: RoundEnd, goes_on: bool) -> None:
        if not goes_on:
            return
        path, t_star = end.tokens[: end.kept], end.tokens[end.kept]
        rejected = state.draft.proposed[end.kept : end.kept + 1]
        excluded = (*state.draft.stop_ids, *rejected)
        rank = state.draft.rank(path, t_star, excluded, coupled=self._coupled)
        self.outcomes.append((end.proposed, end.kept, NOT_NAMED if rank is None else rank))


def outcome_record(result: Continuation, log: OutcomeLog) -> dict[str, Any]:
    """Counts and outcomes of a continuation, for the file."""
    return record_of(result) | {"outcomes": [list(outcome) for outcome in log.outcomes]}


def outcomes_of(record: dict[str, Any]) -> list[Outcome]:
    """The outcomes of a record."""
    return [(int(n), int(kept), int(rank)) for n, kept, rank in record["outcomes"]]


def hits_of_width(prompts: Sequence[Sequence[Outcome]], width: int) -> Counts:
    """(hits, lookups) per prompt if every kept length has ``width`` guesses."""
    return [(sum(0 <= rank < width for _, _, rank in outcomes), len(outcomes)) for outcomes in prompts]


def hits_of_plan(prompts: Sequence[Sequence[Outcome]], planner: FanoutPlanner, rows: int) -> Counts:
    """(hits, lookups) per prompt if a planner spends ``rows`` guesses a round; it learns from round to round.

    As in a draft, it sees the rank of every t* that is among the ``rows`` best guesses for its length.
    """
    statistics = OutcomeStatistics()
    counts = []
    for outcomes in prompts:
        hits = 0
        for n, kept, rank in outcomes:
            hits += 0 <= rank < planner.plan(rows, n, statistics)[kept]
            statistics.observe(n, kept, rank if 0 <= rank < rows else None, rows)
        counts.append((hits, len(outcomes)))
    return counts
