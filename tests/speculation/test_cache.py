"""How a lookup is counted: hit, miss, late, stale; and which blocks can be used."""

from __future__ import annotations

import pytest

from ssd_cluster.link.messages import Block, Branch
from ssd_cluster.speculation.cache import SpeculationCache
from ssd_cluster.types import BlockOrigin, LookupResult, Proposal, ProposalKind, fingerprint

COUPLED = ProposalKind.COUPLED
X = (11, 12, 13)


def block(base: int, proposal: tuple[int, ...], *branches: Branch, seq: int = 1) -> Block:
    return Block(1, 1, seq, base, fingerprint(base, proposal), branches)


def branch(k: int, t_star: int, *tokens: int, score: float = -1.0) -> Branch:
    return Branch(k, t_star, tokens, score)


@pytest.fixture
def cache() -> SpeculationCache:
    started = SpeculationCache(100)
    started.propose(Proposal(100, X, COUPLED))
    return started


def test_hit_gives_tokens_origin_and_rank(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(0, 1, 2), branch(2, 20, 21), branch(2, 30, 31, 32), seq=9), COUPLED)
    found = cache.resolve((11, 12, 30), 5)
    assert (found.result, found.rank) == (LookupResult.HIT, 1)
    assert found.continuation is not None
    proposal = found.continuation.proposal(cache.base_len)
    assert (proposal.base_len, proposal.tokens, proposal.kind) == (103, (31, 32), COUPLED)
    assert proposal.origin == BlockOrigin(9, 2, 0)


def test_miss_if_the_block_has_other_outcomes(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(2, 20, 21)), COUPLED)
    assert cache.arrived
    found = cache.resolve((11, 20), 5)
    assert (found.result, found.continuation, found.rank) == (LookupResult.MISS, None, None)


def test_late_without_any_block(cache: SpeculationCache) -> None:
    assert not cache.arrived
    assert cache.resolve((11, 20), 5).result is LookupResult.LATE


def test_late_if_the_guess_is_right_and_nothing_is_drafted_behind_it(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(1, 20)), COUPLED)
    found = cache.resolve((11, 20), 5)
    assert (found.result, found.continuation, found.rank) == (LookupResult.LATE, None, 0)


def test_stale_if_only_a_block_for_another_proposal_came(cache: SpeculationCache) -> None:
    stale = cache.add_block(block(100, (9, 9), branch(0, 1, 2), branch(1, 20, 21)), COUPLED)
    assert stale == 1, "its k = 0 branches stay usable"
    assert cache.resolve((11, 20), 5).result is LookupResult.STALE
    assert cache.resolve((1,), 5).result is LookupResult.LATE, "the account starts afresh each round"


def test_k0_branches_of_an_unknown_proposal_hit(cache: SpeculationCache) -> None:
    cache.add_block(block(100, (9, 9), branch(0, 1, 2)), COUPLED)
    assert cache.resolve((1,), 5).result is LookupResult.HIT


def test_a_late_block_can_still_answer_the_next_round(cache: SpeculationCache) -> None:
    cache.resolve((11, 20), 5)
    cache.propose(Proposal(102, (40,), ProposalKind.DELTA))
    assert cache.add_block(block(100, X, branch(1, 20, 40, 41, 42), branch(3, 5, 6)), COUPLED) == 1
    assert not cache.arrived
    found = cache.resolve((40, 41), 5)
    assert found.result is LookupResult.HIT
    assert found.continuation is not None
    assert found.continuation.tokens == (42,)


def test_only_the_last_three_proposals_are_known() -> None:
    cache = SpeculationCache(100)
    for token in (1, 2, 3, 4):
        cache.propose(Proposal(100, (token,), COUPLED))
    assert cache.add_block(block(100, (1,), branch(1, 50, 51)), COUPLED) == 1
    assert cache.add_block(block(100, (2,), branch(1, 50, 51)), COUPLED) == 0
    assert cache.resolve((2, 50), 5).result is LookupResult.HIT


def test_branches_beyond_the_proposal_are_dropped(cache: SpeculationCache) -> None:
    assert cache.add_block(block(100, X, branch(4, 1, 2)), COUPLED) == 1


def test_first_block_of_a_session_guesses_the_first_output_token() -> None:
    cache = SpeculationCache(7)
    cache.add_block(block(7, (), branch(0, 3, 4, 5), branch(0, 8, 9)), COUPLED)
    found = cache.resolve((8,), 5)
    assert (found.result, found.rank) == (LookupResult.HIT, 1)


def test_a_just_in_time_chain_is_found_without_an_outcome(cache: SpeculationCache) -> None:
    cache.resolve((11, 20), 3)
    cache.add_block(block(102, (), Branch(0, 21, (22, 23), 0.0, jit=True)), COUPLED)
    assert cache.arrived
    found = cache.lookup(3)
    assert found is not None
    assert (found.tokens, found.kind) == ((21, 22, 23), COUPLED)
    proposal = found.proposal(cache.base_len)
    cache.propose(proposal)
    assert not cache.arrived, "a block for the chain itself is expected now"
    cache.add_block(block(102, (21, 22, 23), branch(3, 24, 25)), COUPLED)
    assert cache.resolve((21, 22, 23, 24), 3).result is LookupResult.HIT


def test_a_plain_step_is_no_lookup(cache: SpeculationCache) -> None:
    cache.commit((5,))
    assert cache.base_len == 101
    assert cache.lookup(3) is None


def test_nothing_to_propose_at_the_length_limit(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(1, 20, 21)), COUPLED)
    found = cache.resolve((11, 20), 0)
    assert (found.result, found.continuation) == (LookupResult.HIT, None)
