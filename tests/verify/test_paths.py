"""Token trees, sample-and-follow, and what the rules for branches refuse."""

from __future__ import annotations

import pytest
import torch

from ssd_cluster.verify import DenseLaw, PathOutcome, TokenTree, follow, multidraft_hsd, naive_hsd, traverse
from ssd_cluster.verify.chain import Chain

TREE = TokenTree((5, 6, 7, 5), (0, 0, 1, 2))


def test_paths_and_children() -> None:
    assert TREE.children == [[1, 2], [3], [4], [], []]
    assert [TREE.path(i) for i in range(5)] == [(), (5,), (6,), (5, 7), (6, 5)]


def test_follow_walks_the_draws() -> None:
    assert follow(TREE, [5, 7, 9, 1, 9]) == PathOutcome((5, 7), 1)
    assert follow(TREE, [6, 9, 9, 9, 9]) == PathOutcome((6,), 9)
    assert follow(TREE, [4, 7, 5, 9, 9]) == PathOutcome((), 4)
    assert follow(TokenTree((), ()), [3]) == PathOutcome((), 3)
    with pytest.raises(ValueError, match="5 draws needed, got 2"):
        follow(TREE, [1, 2])


def test_trees_that_are_none_are_refused() -> None:
    for tokens, parents, message in (
        ((1, 2), (0,), "2 tokens, but 1 parents"),
        ((1, 2), (0, 2), "before its children"),
        ((1, 2), (0, -1), "before its children"),
        ((1, 1), (0, 0), "siblings must differ"),
    ):
        with pytest.raises(ValueError, match=message):
            TokenTree(tokens, parents)


def test_the_same_token_may_stand_below_different_parents() -> None:
    assert TokenTree((1, 2, 1, 1), (0, 0, 1, 2)).path(4) == (2, 1)


def test_traversal_refuses_wrong_numbers() -> None:
    rows = torch.full((5, 9), 1 / 9)
    law = DenseLaw(rows[:4])
    with pytest.raises(ValueError, match="4 nodes, but 4 rows, 4 laws and 5 uniforms"):
        traverse(TREE, rows[:4], law, torch.rand(5), torch.ones(9))
    assert traverse(TokenTree((), ()), rows[:1], DenseLaw(rows[:0]), torch.rand(1), None).tokens == ()


def test_several_drafts_need_one() -> None:
    with pytest.raises(ValueError, match="at least one"):
        multidraft_hsd([], None)


def test_naive_hsd_calls_the_target_once_per_token_but_one() -> None:
    """g - tau - 1 further calls after a stop at tau; none after a whole chain."""
    V, g = 5, 6
    generator = torch.Generator().manual_seed(1)
    rows = torch.softmax(torch.randn(g + 1, V, generator=generator), -1)
    law = DenseLaw(torch.softmax(torch.randn(g, V, generator=generator), -1))
    seen = set()
    for u in (0.0, 0.2, 0.4, 0.6, 0.8, 0.9999):
        asked: list[tuple[int, ...]] = []

        def target(prefix: tuple[int, ...], asked: list[tuple[int, ...]] = asked) -> torch.Tensor:
            asked.append(prefix)
            return rows[len(prefix)]

        chain = Chain(rows, law, torch.tensor([0, 1, 2, 3, 4, 0]), torch.full((g,), u))
        outcome = naive_hsd(
            chain, lambda prefix: law.row(len(prefix)) if len(prefix) < g else None, target, lambda t: torch.ones(V)
        )
        seen.add(outcome.kept)
        if outcome.kept == g:
            assert (outcome.target_calls, len(outcome.tokens)) == (0, 1)
        else:
            assert outcome.target_calls == len(asked) == g - outcome.kept - 1
            assert len(outcome.tokens) == g - outcome.kept
            assert [len(prefix) for prefix in asked] == list(range(outcome.kept + 1, g))
    assert len(seen) > 1


def test_naive_hsd_stops_where_the_draft_would() -> None:
    rows = torch.tensor([[0.1, 0.9]] * 4)
    law = DenseLaw(torch.tensor([[0.9, 0.1]] * 3))
    chain = Chain(rows, law, torch.tensor([0, 0, 0]), torch.full((3,), 0.999))
    outcome = naive_hsd(chain, lambda prefix: None, lambda prefix: rows[0], lambda t: torch.ones(2))
    assert (outcome.kept, outcome.tokens, outcome.target_calls) == (0, (1,), 0)
