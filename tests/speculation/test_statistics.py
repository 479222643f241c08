"""Outcome statistics: consistent with what was generated, honest about what was not seen."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_cluster.speculation.statistics import (
    OutcomeStatistics,
    Prior,
    StatisticsBook,
    non_increasing,
    temperature_bucket,
)
from ssd_cluster.types import ProposalKind


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6), st.one_of(st.none(), st.integers(0, 7)), st.integers(0, 8)),
        max_size=40,
    ),
    st.integers(0, 8),
)
def test_laws_are_laws(rounds: list[tuple[int, int, int | None, int]], n: int) -> None:
    statistics = OutcomeStatistics(memory=16)
    for proposed, kept, rank, guesses in rounds:
        statistics.observe(proposed, min(kept, proposed), rank, guesses)
    law = statistics.kept_probabilities(n)
    assert len(law) == n + 1
    assert sum(law) == pytest.approx(1)
    assert min(law) >= 0
    for full in (False, True):
        ranks = statistics.rank_probabilities(full, 12)
        assert sum(ranks) <= 1 + 1e-9
        assert all(a >= b - 1e-12 for a, b in itertools.pairwise(ranks))


def test_before_anything_is_seen_the_prior_speaks() -> None:
    prior = Prior(acceptance=0.8, r=0.5, c=0.6, c_full=0.3)
    statistics = OutcomeStatistics(prior)
    assert statistics.kept_probabilities(2) == pytest.approx([0.2, 0.16, 0.64])
    assert statistics.expected_tokens(2) == pytest.approx(1 + 0.16 + 2 * 0.64)
    for full, c in ((False, 0.6), (True, 0.3)):
        hits = np.cumsum(statistics.rank_probabilities(full, 6))
        assert hits == pytest.approx([1 - c * f**-0.5 for f in range(1, 7)])


def test_kept_lengths_of_any_proposal_length_teach_every_other() -> None:
    statistics, rng, accept = OutcomeStatistics(memory=10**6), random.Random(3), (0.9, 0.5, 0.7, 0.7)
    for _ in range(20_000):
        n = rng.randint(0, 4)
        k = 0
        while k < n and rng.random() < accept[k]:
            k += 1
        statistics.observe(n, k)
    assert statistics.kept_probabilities(4) == pytest.approx([0.1, 0.45, 0.135, 0.0945, 0.2205], abs=0.015)


def test_a_guess_list_that_ended_early_is_no_evidence_beyond_its_end() -> None:
    """Ranks follow a fixed law; half the rounds show two guesses only. Naive counting would halve ranks 2 and 3."""
    statistics, rng, law = OutcomeStatistics(memory=10**6), random.Random(4), (0.4, 0.2, 0.15, 0.1)
    for _ in range(20_000):
        rank = rng.choices(range(5), (*law, 0.15))[0]
        guesses = rng.choice((2, 4))
        statistics.observe(3, 1, rank if rank < guesses else None, guesses)
    assert statistics.rank_probabilities(False, 4) == pytest.approx(law, abs=0.015)


def test_rejection_and_full_acceptance_are_kept_apart() -> None:
    statistics = OutcomeStatistics()
    for _ in range(300):
        statistics.observe(3, 1, 1, 4)
        statistics.observe(3, 3, 0, 4)
        statistics.observe(0, 0, 0, 4)
    assert statistics.rank_probabilities(True, 1)[0] > 0.95
    assert statistics.rank_probabilities(False, 2) == pytest.approx([0.5, 0.5], abs=0.01), (
        "out of order ranks are pooled"
    )


def test_old_rounds_fade() -> None:
    statistics = OutcomeStatistics(memory=32)
    for _ in range(320):
        statistics.observe(1, 1)
    before = statistics.acceptance
    for _ in range(160):
        statistics.observe(1, 0)
    assert before > 0.9
    assert statistics.acceptance < 0.2, "two thirds of all rounds were kept, none of the latest"
    assert statistics.rounds == 480


def test_impossible_outcomes_are_refused() -> None:
    with pytest.raises(ValueError, match="kept length"):
        OutcomeStatistics().observe(2, 3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_isotonic_fit(values: list[float]) -> None:
    fit = non_increasing(values)
    assert sum(fit) == pytest.approx(sum(values))
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(fit))
    if values == sorted(values, reverse=True):
        assert fit == pytest.approx(values)
    for rival in (sorted(values, reverse=True), [sum(values) / len(values)] * len(values) if values else []):
        assert _squares(fit, values) <= _squares(rival, values) + 1e-9


def _squares(a: list[float], b: list[float]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def test_the_book_separates_targets_kinds_and_temperatures() -> None:
    book = StatisticsBook()
    entry = book.of("a", ProposalKind.COUPLED, 0.7)
    assert book.of("a", ProposalKind.COUPLED, 0.8) is entry
    others = [
        book.of("b", ProposalKind.COUPLED, 0.7),
        book.of("a", ProposalKind.DELTA, 0.7),
        book.of("a", ProposalKind.COUPLED, 0.0),
        book.of("a", ProposalKind.COUPLED, 1.0),
    ]
    assert all(other is not entry for other in others)
    book.forget("a")
    assert book.of("a", ProposalKind.COUPLED, 0.7) is not entry
    assert book.of("b", ProposalKind.COUPLED, 0.7) is others[0]


def test_greedy_has_a_bucket_of_its_own() -> None:
    assert temperature_bucket(0.0) == 0
    assert temperature_bucket(0.01) == 1
    assert [temperature_bucket(t) for t in (0.7, 1.0, 1.5)] == [3, 4, 5]
