"""The trie against a brute-force list of branches, and the rules the list does not know: kinds, origins, budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_cluster.speculation.trie import TokenTrie
from ssd_cluster.types import BlockOrigin, ProposalKind

COUPLED, DELTA, DENSE = ProposalKind.COUPLED, ProposalKind.DELTA, ProposalKind.DENSE


@dataclass
class Branches:
    """Oracle: all branches as absolute paths from position 0; nothing is shared, everything is searched."""

    text: list[int]
    start: int
    branches: list[tuple[int, tuple[int, ...], int, float]] = field(default_factory=list)

    def insert(self, base: int, kept: tuple[int, ...], t_star: int, tokens: tuple[int, ...], score: float) -> bool:
        path = (*kept, t_star, *tokens)
        known = self.start <= base <= len(self.text)
        agrees = known and tuple(self.text[base : base + len(path)]) == path[: len(self.text) - base]
        if not agrees or base + len(path) <= len(self.text):
            return False
        self.branches.append((base, path, len(kept), score))
        return True

    def alive(self) -> list[tuple[int, tuple[int, ...], int, float]]:
        end = len(self.text)
        return [b for b in self.branches if tuple(self.text[b[0] :]) == b[1][: end - b[0]] and b[0] + len(b[1]) > end]

    def best(self, k: int) -> tuple[tuple[int, ...], float] | None:
        """Extend by the token of the best (score, newest base), considering every branch that still agrees."""
        chain: list[int] = []
        total = 0.0
        while len(chain) < k:
            options: dict[int, tuple[float, int]] = {}
            for base, path, star, score in self.alive():
                at = len(self.text) + len(chain) - base
                if at < len(path) and list(path[at - len(chain) : at]) == chain:
                    old = options.get(path[at], (-math.inf, -1))
                    own = score if at == star else 0.0
                    options[path[at]] = (max(old[0], own), max(old[1], base))
            if not options:
                break
            token = max(options, key=lambda t: options[t])
            total += options[token][0]
            chain.append(token)
        return (tuple(chain), total) if chain else None

    def nodes(self) -> int:
        end = len(self.text)
        return len(
            {path[end - base : n] for base, path, _, _ in self.alive() for n in range(end - base + 1, len(path) + 1)}
        )


TOKEN = st.integers(0, 2)
INSERT = st.tuples(
    st.just("insert"),
    st.integers(-1, 6),
    st.lists(TOKEN, max_size=3).map(tuple),
    TOKEN,
    st.lists(TOKEN, max_size=4).map(tuple),
)
ADVANCE = st.tuples(st.just("advance"), st.lists(TOKEN, max_size=3))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(INSERT, INSERT, ADVANCE), max_size=25), st.integers(1, 6))
def test_agrees_with_a_list_of_branches(steps: list[tuple], k: int) -> None:
    trie, oracle = TokenTrie(10, max_nodes=10_000), Branches([0] * 10, 10)
    for number, step in enumerate(steps):
        if step[0] == "insert":
            _, back, kept, t_star, tokens = step
            base = len(oracle.text) - back
            score = -0.5 - 1e-3 * number
            added = trie.insert(base, kept, t_star, tokens, score=score, rank=0, source="draft", kind=COUPLED)
            assert added == oracle.insert(base, kept, t_star, tokens, score)
        else:
            known = bool(step[1]) and tuple(step[1]) in {
                path[len(oracle.text) - base :][: len(step[1])] for base, path, _, _ in oracle.alive()
            }
            walk = trie.advance(step[1])
            oracle.text += step[1]
            assert walk.found == (known or not step[1])
        assert trie.base_len == len(oracle.text)
        assert len(trie) == oracle.nodes()
        found, expected = trie.lookup(k), oracle.best(k)
        if expected is None:
            assert found is None
        else:
            assert found is not None
            assert _equally_good(oracle, found.tokens, expected[0])
            assert found.score == pytest.approx(expected[1])


def _equally_good(oracle: Branches, found: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Equal, or parting at two drafted tokens of branches of one base (then the first that came stays)."""
    if found == expected:
        return True
    at = next(i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b)
    bases = []
    for chain in (found, expected):
        hits = []
        for base, path, star, score in oracle.alive():
            offset = len(oracle.text) - base
            if path[offset : offset + at + 1] == chain[: at + 1]:
                hits.append((score if offset + at == star else 0.0, base))
        bases.append((max(h[0] for h in hits), max(h[1] for h in hits)))
    return bases[0] == bases[1]


def insert(
    trie: TokenTrie, base: int, kept: tuple[int, ...], t_star: int, tokens: tuple[int, ...], **how: object
) -> bool:
    options: dict = {"score": -1.0, "rank": 0, "source": "draft", "kind": COUPLED} | how
    return trie.insert(base, kept, t_star, tokens, **options)


def test_hit_partial_depth_and_the_rest_of_a_branch() -> None:
    trie = TokenTrie(100)
    insert(trie, 100, (1, 2), 7, (8, 9, 10), rank=2, origin=BlockOrigin(5, 3, 0))
    assert trie.advance((1, 2, 7)) == (walk := type(trie.advance(()))(True, 2))
    assert walk.rank == 2
    first = trie.lookup(2)
    assert first is not None
    assert (first.tokens, first.origin, first.score) == ((8, 9), BlockOrigin(5, 3, 0), 0.0)
    trie.advance((8, 9))
    rest = trie.lookup(8)
    assert rest is not None
    assert (rest.tokens, rest.origin) == ((10,), BlockOrigin(5, 3, 2))
    trie.advance((10,))
    assert trie.lookup(8) is None


def test_a_late_block_matches_as_prefix_and_a_wrong_one_is_stale() -> None:
    trie = TokenTrie(100)
    trie.advance((1, 2))
    assert insert(trie, 100, (1,), 2, (3, 4))
    assert not insert(trie, 100, (1,), 3, (3, 4)), "contradicts the committed text"
    assert not insert(trie, 100, (1,), 2, ()), "lies behind it"
    assert not insert(trie, 103, (), 2, (5,)), "lies ahead of it"
    assert not insert(trie, 99, (0, 1), 2, (5,)), "built on a length from before the trie"
    found = trie.lookup(8)
    assert found is not None
    assert found.tokens == (3, 4)


def test_the_best_guess_wins_and_a_drafted_token_beats_any_guess() -> None:
    trie = TokenTrie(0)
    insert(trie, 0, (), 5, (50,), score=-2.0)
    insert(trie, 0, (), 6, (60,), score=-1.0, rank=1)
    best = trie.lookup(4)
    assert best is not None
    assert (best.tokens, best.score, best.origin) == ((6, 60), -1.0, None)
    insert(trie, 0, (6,), 61, (62,), score=-0.1)
    trie.advance((6,))
    following = trie.lookup(4)
    assert following is not None
    assert following.tokens == (60,)


def test_a_guess_behind_the_proposal_continues_it() -> None:
    trie = TokenTrie(0)
    insert(trie, 0, (1, 2), 3, (4,), score=-0.3)
    insert(trie, 0, (1,), 9, (9,), score=-0.2)
    found = trie.lookup(3)
    assert found is not None
    assert found.tokens == (1, 2, 3)
    assert found.score == pytest.approx(-0.3)


def test_joined_kinds_are_delta() -> None:
    trie = TokenTrie(0)
    insert(trie, 0, (), 1, (2,), kind=COUPLED)
    insert(trie, 0, (1, 2), 3, (4,), kind=DELTA, source="ngram")
    trie.advance((1,))
    joined, alone = trie.lookup(3), trie.lookup(1)
    assert joined is not None
    assert (joined.tokens, joined.kind, joined.source) == ((2, 3, 4), DELTA, "draft")
    assert alone is not None
    assert alone.kind is COUPLED


def test_tokens_of_a_ratio_kind_are_delta_here() -> None:
    trie = TokenTrie(0)
    insert(trie, 0, (), 1, (2, 3), kind=DENSE, origin=BlockOrigin(1, 0, 0))
    trie.advance((1,))
    found = trie.lookup(5)
    assert found is not None
    assert (found.tokens, found.kind, found.origin) == ((2, 3), DELTA, BlockOrigin(1, 0, 0))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 9), min_size=1, max_size=6)), max_size=40))
def test_the_budget_holds(branches: list[tuple[int, list[int]]]) -> None:
    trie = TokenTrie(0, max_nodes=16)
    for t_star, tokens in branches:
        insert(trie, 0, (), t_star, tuple(tokens))
        trie.trim()
        assert len(trie) <= 16
        assert len(trie) == sum(1 for _ in trie._below_root())


def test_eviction_takes_the_oldest_then_the_least_probable() -> None:
    trie = TokenTrie(0, max_nodes=6)
    insert(trie, 0, (1,), 2, (3,), score=-0.1)
    trie.advance((1,))
    insert(trie, 1, (), 4, (5,), score=-3.0)
    insert(trie, 1, (), 6, (7,), score=-1.0)
    insert(trie, 1, (), 8, (9,), score=-2.0)
    trie.trim()
    assert not trie_has(trie, (2,))
    assert trie_has(trie, (4, 5))
    insert(trie, 1, (), 10, (11,), score=-0.5)
    trie.trim()
    assert not trie_has(trie, (4,))
    assert all(trie_has(trie, path) for path in ((6, 7), (8, 9), (10, 11)))


def trie_has(trie: TokenTrie, path: tuple[int, ...]) -> bool:
    node = trie._root
    for token in path:
        if token not in node.children:
            return False
        node = node.children[token]
    return True


def test_nothing_is_proposed_for_no_tokens() -> None:
    trie = TokenTrie(0)
    insert(trie, 0, (), 1, (2,))
    assert trie.lookup(0) is None
