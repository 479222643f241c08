"""Which chains may be verified with their law: by where they stand, never by what they hold."""

from __future__ import annotations

import pytest

from ssd_cluster.link.messages import Block, Branch
from ssd_cluster.speculation.cache import SpeculationCache
from ssd_cluster.types import BlockOrigin, LookupResult, Proposal, ProposalKind, fingerprint

DELTA, SPARSE = ProposalKind.DELTA, ProposalKind.SPARSE
X = (11, 12, 13)


def block(base: int, proposal: tuple[int, ...], *branches: Branch, seq: int = 1) -> Block:
    return Block(1, 1, seq, base, fingerprint(base, proposal), branches)


def branch(k: int, t_star: int, *tokens: int, score: float = -1.0) -> Branch:
    return Branch(k, t_star, tokens, score)


def chain(base: int, *tokens: int, seq: int = 1) -> Block:
    return block(base, (), Branch(0, tokens[0], tokens[1:], 0.0, jit=True), seq=seq)


@pytest.fixture
def cache() -> SpeculationCache:
    started = SpeculationCache(100)
    started.propose(Proposal(100, X, SPARSE))
    return started


def proposal(cache: SpeculationCache, k: int = 5) -> Proposal:
    found = cache.lookup(k)
    return found.proposal(cache.base_len) if found is not None else Proposal(cache.base_len)


def test_the_branch_that_the_outcome_names(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(2, 20, 1, 2, score=-0.1), branch(2, 30, 31, 32, 33), seq=9), SPARSE)
    found = cache.resolve((11, 12, 30), 2)
    assert found.result is LookupResult.HIT
    assert found.continuation is not None
    named = found.continuation.proposal(cache.base_len)
    assert (named.base_len, named.tokens, named.kind, named.origin) == (103, (31, 32), SPARSE, BlockOrigin(9, 1, 0))


def test_the_newest_block_counts_whatever_its_tokens_and_scores(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(0, 20, 1, 2, 3), seq=5), SPARSE)
    cache.add_block(block(100, X, branch(0, 20, 7, score=-9.0), seq=6), SPARSE)
    cache.add_block(block(100, X, branch(0, 20, 8, 9), seq=4), SPARSE)
    cache.resolve((20,), 5)
    assert proposal(cache).tokens == (7,)
    assert proposal(cache).kind is SPARSE


def test_a_branch_that_is_entered_in_its_middle_is_delta(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(0, 20, 21, 22, 23)), SPARSE)
    cache.propose(Proposal(100, X[:1], DELTA))
    cache.resolve((20,), 0)
    cache.propose(Proposal(101))
    found = cache.resolve((21,), 5)
    assert found.continuation is not None
    assert (found.continuation.tokens, found.continuation.kind) == ((22, 23), DELTA)


def test_a_block_on_another_proposal_is_delta(cache: SpeculationCache) -> None:
    cache.add_block(block(100, (9, 9), branch(0, 20, 21, 22)), SPARSE)
    cache.resolve((20,), 5)
    assert (proposal(cache).tokens, proposal(cache).kind) == ((21, 22), DELTA)


def test_a_guessed_next_token_is_no_draw(cache: SpeculationCache) -> None:
    cache.propose(Proposal(100))
    cache.add_block(block(100, (), branch(0, 20, 21, 22)), SPARSE)
    assert (proposal(cache).tokens, proposal(cache).kind) == ((20, 21, 22), DELTA)
    cache.resolve((20,), 5)
    assert (proposal(cache).tokens, proposal(cache).kind) == ((21, 22), SPARSE)


def test_a_late_block_that_comes_while_the_target_waits(cache: SpeculationCache) -> None:
    assert cache.resolve((11, 20), 5).result is LookupResult.LATE
    cache.propose(Proposal(102))
    cache.add_block(block(100, X, branch(1, 20, 21, 22), seq=3), SPARSE)
    assert (proposal(cache).tokens, proposal(cache).kind) == ((21, 22), SPARSE)


def test_a_just_in_time_chain_starts_with_its_first_token(cache: SpeculationCache) -> None:
    cache.resolve((11, 20), 5)
    cache.propose(Proposal(102))
    cache.add_block(chain(102, 31, 32, 33, seq=7), SPARSE)
    waited = proposal(cache, 2)
    assert (waited.tokens, waited.kind, waited.origin) == ((31, 32), SPARSE, BlockOrigin(7, 0, 0))


def test_a_chain_that_comes_after_its_round_is_delta(cache: SpeculationCache) -> None:
    cache.resolve((11, 20), 5)
    cache.propose(Proposal(102))
    cache.resolve((31,), 0)
    cache.add_block(chain(102, 31, 32, 33), SPARSE)
    assert (proposal(cache).tokens, proposal(cache).kind) == ((32, 33), DELTA)


def test_a_block_serves_one_outcome_only(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(0, 20, 21, 22), branch(1, 20, 23, 24)), SPARSE)
    cache.resolve((20,), 2)
    cache.propose(Proposal(101, (21, 22), SPARSE))
    found = cache.resolve((21, 22, 40), 5)
    assert found.continuation is None


def test_plain_steps_between_leave_nothing_to_verify_with_a_law(cache: SpeculationCache) -> None:
    cache.add_block(block(100, X, branch(0, 20, 21, 22)), SPARSE)
    cache.commit((20,))
    assert proposal(cache).kind is DELTA


def test_a_chain_survives_the_budget_of_the_trie() -> None:
    cache = SpeculationCache(100, max_nodes=4)
    cache.propose(Proposal(100, X, SPARSE))
    cache.add_block(block(100, X, *(branch(0, 20 + i, *range(50, 58)) for i in range(5))), SPARSE)
    found = cache.resolve((24,), 8)
    assert found.result is LookupResult.HIT
    assert (proposal(cache, 8).tokens, proposal(cache, 8).kind) == (tuple(range(50, 58)), SPARSE)
