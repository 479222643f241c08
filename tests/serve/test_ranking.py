"""Which draft a lease is asked from, and how many drafts there should be: the pure parts of router and policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from ssd_cluster.serve.policy import DraftPolicy
from ssd_cluster.serve.ranking import Candidate, rank


def draft(name: str, rows: int = 0, **fields: Any) -> Candidate:
    return Candidate(name, rows, **{"row_credit": 100, **fields})


def order(*candidates: Candidate, rows: int = 10, linked: str = "", exclude: str = "") -> list[list[str]]:
    return rank(candidates, rows, linked.split(), exclude.split())


def test_links_come_first_while_they_have_rows_free() -> None:
    assert order(draft("a"), draft("b", 60), linked="b") == [["b"], ["a"]]
    assert order(draft("a"), draft("b", 71), linked="b") == [["a"], ["b"]]


def test_the_emptiest_comes_first_and_equals_share_a_group() -> None:
    assert order(draft("a", 40), draft("b"), draft("c")) == [["b", "c"], ["a"]]
    assert order(draft("a"), draft("b"), linked="a b") == [["a", "b"]]


def test_late_and_overcommitted_replicas_come_after_those_with_room() -> None:
    assert order(draft("a", lateness=0.5), draft("b", 95), draft("c", 60), linked="a") == [["c"], ["a"], ["b"]]


def test_excluded_replicas_come_last_but_come() -> None:
    assert order(draft("a"), draft("b", 500), linked="a", exclude="a") == [["b"], ["a"]]
    assert order(draft("a"), exclude="a") == [["a"]]
    assert order(draft("a", draining=True), draft("b"), exclude="b") == [["b"], ["a"]]


def test_a_replica_without_statistics_counts_as_empty() -> None:
    assert Candidate.of("a", {}) == Candidate("a")
    stats = {"rows": 12, "row_credit": 32, "lateness": 0.25, "draining": True, "endpoint": "x"}
    assert Candidate.of("a", stats) == Candidate("a", 12, 32, 0.25, True)
    assert order(Candidate("new"), draft("b", 40)) == [["new"], ["b"]]


@dataclass
class Context:
    """What Serve tells the policy."""

    current_num_replicas: int
    aggregated_metrics: dict[str, dict[str, float]] | None = field(default_factory=dict)
    total_queued_requests: float | None = 0.0


def context(*replicas: dict[str, float], queued: float = 0.0) -> Context:
    fixed = {"row_credit": 100, "session_credit": 10, "lateness": 0.0, "target_utilisation": 0.5, "late_share": 0.3}
    merged = [{**fixed, **one} for one in replicas]
    names = merged[0]
    return Context(len(replicas), {n: {str(i): one[n] for i, one in enumerate(merged)} for n in names}, queued)


@pytest.mark.parametrize(
    ("ctx", "wanted"),
    [
        (context({"rows": 50, "sessions": 1}), 1),
        (context({"rows": 51, "sessions": 1}), 2),
        (context({"rows": 10, "sessions": 6}), 2),
        (context({"rows": 0, "sessions": 0}), 0),
        (context({"rows": 0, "sessions": 0}, queued=1), 1),
        (context({"rows": 40, "sessions": 4}, queued=6), 2),
        (context({"rows": 10, "sessions": 1}, {"rows": 10, "sessions": 1}, {"rows": 10, "sessions": 1}), 1),
        (context({"rows": 10, "sessions": 2, "lateness": 0.4}), 2),
        (context({"rows": 10, "sessions": 1, "lateness": 0.9}), 1),
    ],
)
def test_how_many_drafts_are_wanted(ctx: Context, wanted: int) -> None:
    assert DraftPolicy()(ctx) == (wanted, {})


def test_without_statistics_the_number_stays() -> None:
    assert DraftPolicy()(Context(2, None)) == (2, {})
    assert DraftPolicy()(Context(3, {"sessions": {"a": 1.0}})) == (3, {})
