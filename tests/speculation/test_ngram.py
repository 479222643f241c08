"""N-gram proposals against a search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_cluster.errors import ConfigError
from ssd_cluster.speculation.ngram import NgramProposer
from ssd_cluster.types import Proposal, ProposalKind


def naive(text: list[int], k: int, min_n: int, max_n: int) -> tuple[int, ...]:
    for n in range(max_n, min_n - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if len(text) > n and text[start : start + n] == text[-n:]:
                copied = list(text)
                for i in range(k):
                    copied.append(copied[start + n + i])
                return tuple(copied[len(text) :])
    return ()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=5),
    st.integers(0, 9),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_equals_a_search_of_the_text(pieces: list[list[int]], k: int, min_n: int, more: int) -> None:
    text: list[int] = []
    proposer = NgramProposer(min_n=min_n, max_n=min_n + more)
    for piece in pieces:
        proposer.extend(piece)
        text += piece
        assert len(proposer) == len(text)
        assert proposer.propose(k) == naive(text, k, min_n, min_n + more)


def test_longest_then_latest_match() -> None:
    assert NgramProposer([1, 2, 3, 9, 2, 3, 8, 1, 2, 3]).propose(1) == (9,)
    assert NgramProposer([2, 3, 9, 2, 3, 8, 7, 2, 3]).propose(2) == (8, 7)


def test_a_loop_goes_on() -> None:
    assert NgramProposer([1, 2, 1, 2, 1]).propose(5) == (2, 1, 2, 1, 2)


def test_no_match_no_proposal() -> None:
    proposer = NgramProposer([1, 2, 3, 4])
    assert proposer.propose(4) == ()
    assert proposer.proposal(4) == Proposal(4)
    proposer.extend([1, 2])
    assert proposer.proposal(2) == Proposal(6, (3, 4), ProposalKind.DELTA, "ngram")


@pytest.mark.parametrize(("low", "high"), [(0, 2), (3, 2)])
def test_lengths_are_checked(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match="n-gram"):
        NgramProposer(min_n=low, max_n=high)
