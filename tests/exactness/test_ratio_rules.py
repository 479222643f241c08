"""Every ratio rule is lossless: enumeration in rational arithmetic over chained rounds, error exactly 0.

Rounds follow each other until gamma + 2 tokens are out, so each text crosses the seam between rounds in several places.
What is enumerated here are the rules; test_ratio_code.py does the same with the package's code.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from support.exact_branches import (
    block_stops,
    follow_round,
    independent,
    multidraft_round,
    point_masses,
    tokenwise_stops,
    traversal_round,
    without_replacement,
)
from support.exact_rules import (
    block_h,
    block_verdict,
    chain_round,
    expected_kept,
    hsd_h,
    hsd_verdict,
    naive_h,
    naive_round,
    tokenwise_verdict,
    uncapped_verdict,
)
from support.exact_world import SHAPES, ConstantWorld, Round, World, chained, error, plain_round, worlds

CHAIN_RULES: dict[str, Round] = {
    "token": chain_round(tokenwise_verdict),
    "block": chain_round(block_verdict),
    "hsd": chain_round(hsd_verdict),
    "naive_hsd": naive_round,
}
BRANCH_RULES: dict[str, Round] = {
    "drafts_token": multidraft_round(independent(2), tokenwise_stops),
    "drafts_hsd": multidraft_round(independent(2), block_stops),
    "drafts_hsd_tested_again": multidraft_round(independent(2), block_stops, skip_tested=False),
    "drafts_hsd_without_replacement": multidraft_round(without_replacement(2), block_stops),
    "drafts_token_point_masses": multidraft_round(point_masses, tokenwise_stops),
    "drafts_hsd_point_masses": multidraft_round(point_masses, block_stops),
    "tree": traversal_round(independent(2)),
    "tree_without_replacement": traversal_round(without_replacement(2)),
    "tree_point_masses": traversal_round(point_masses),
    "follow": follow_round,
}
# Two drafts square the number of proposals: the smaller tables.
BRANCH_SHAPES: dict[str, dict[str, Any]] = {
    "full": {},
    "three_drafts_worth": {"gamma": 1, "vocabulary": 3},
    "zeros": {"vocabulary": 3, "p": "zeros", "q": "zeros"},
    "one_hot_p": {"p": "one_hot"},
    "one_hot_q": {"vocabulary": 3, "q": "one_hot"},
    "equal": {"q": "equal"},
    "eos_adaptive": {"eos": 1, "adaptive": True, "vocabulary": 3},
}


def losses(world: World, round_: Round) -> Fraction:
    length = world.gamma + 2
    loss: Fraction = error(chained(world, round_, length), chained(world, plain_round, length))
    return loss


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", CHAIN_RULES)
def test_chain_rules_are_lossless(rule: str, shape: str) -> None:
    for world in worlds(2, **SHAPES[shape]):
        assert losses(world, CHAIN_RULES[rule]) == 0


@pytest.mark.parametrize("shape", BRANCH_SHAPES)
@pytest.mark.parametrize("rule", BRANCH_RULES)
def test_rules_for_several_drafts_and_trees_are_lossless(rule: str, shape: str) -> None:
    assert losses(World(seed=3, **BRANCH_SHAPES[shape]), BRANCH_RULES[rule]) == 0


def test_drafts_that_go_on_where_the_prefix_ratio_is_below_1() -> None:
    """The first draft often stops behind an overdrawn token, with two tokens left in the residual."""
    world = ConstantWorld((9, 6, 5), (45, 1, 4))
    for rule in ("drafts_hsd", "tree"):
        assert error(chained(world, BRANCH_RULES[rule], 3), chained(world, plain_round, 3)) == 0


def test_three_drafts_and_more_drafts_than_tokens() -> None:
    world = World(seed=1, gamma=1, vocabulary=3)
    for source in (independent(3), without_replacement(3), without_replacement(5)):
        for round_ in (multidraft_round(source, block_stops), traversal_round(source)):
            assert losses(world, round_) == 0


def test_capped_hsd_is_block_verification_on_every_path() -> None:
    """The paper's equations 19-20, from joint probabilities and the index of the largest prefix ratio."""
    paths = 0
    for fields in SHAPES.values():
        for world in worlds(3, **fields):
            for x, _ in world.chains(()):
                P, Q = world.rows((), x)
                assert hsd_h(P, Q, x) == block_h(P, Q, x)
                paths += 1
    assert paths > 200


def test_order_of_the_rules_by_expected_accepted_tokens() -> None:
    """naive >= block = HSD >= token-wise; each inequality is strict somewhere."""
    strict = {"naive": 0, "block": 0}
    for fields in ({"gamma": 3}, {"gamma": 3, "vocabulary": 3}, {"gamma": 3, "p": "zeros", "vocabulary": 3}):
        for world in worlds(6, **fields):
            kept = dict.fromkeys(("naive", "block", "hsd", "token"), Fraction(0))
            for x, probability in world.chains(()):
                P, Q = world.rows((), x)
                kept["naive"] += probability * expected_kept(naive_h(P, Q, x))
                kept["block"] += probability * expected_kept(block_h(P, Q, x))
                kept["hsd"] += probability * expected_kept(hsd_verdict(P, Q, x))
                kept["token"] += probability * expected_kept(tokenwise_verdict(P, Q, x))
            assert kept["naive"] >= kept["block"] == kept["hsd"] >= kept["token"]
            strict["naive"] += kept["naive"] > kept["block"]
            strict["block"] += kept["block"] > kept["token"]
    assert min(strict.values()) > 5


def test_gamma_1_all_rules_coincide() -> None:
    for world in worlds(5, gamma=1, vocabulary=3, q="zeros"):
        for x, _ in world.chains(()):
            P, Q = world.rows((), x)
            assert tokenwise_verdict(P, Q, x) == block_verdict(P, Q, x) == hsd_verdict(P, Q, x)
            assert block_h(P, Q, x) == naive_h(P, Q, x)
            assert uncapped_verdict(P, Q, x) == block_verdict(P, Q, x)
        assert naive_round(world, ()) == chain_round(block_verdict)(world, ())


def test_one_hot_p_keeps_the_longest_match() -> None:
    for world in worlds(5, gamma=3, p="one_hot", vocabulary=3):
        for x, _ in world.chains(()):
            P, Q = world.rows((), x)
            greedy = [row.index(1) for row in P]
            match = next((t for t, token in enumerate(x) if token != greedy[t]), len(x))
            wanted = {(match, greedy[match]): 1}
            assert tokenwise_verdict(P, Q, x) == block_verdict(P, Q, x) == hsd_verdict(P, Q, x) == wanted


def test_point_masses_every_rule_keeps_the_same() -> None:
    """On top-k trees no rule keeps more than another: the law of the kept path is the target's own."""
    for world in worlds(3, q="one_hot", gamma=3, vocabulary=3):
        ((x, _),) = world.chains(())
        P, Q = world.rows((), x)
        assert expected_kept(tokenwise_verdict(P, Q, x)) == expected_kept(block_verdict(P, Q, x))
    for world in worlds(2, gamma=2):
        law = follow_round(world, ())
        for stops in (tokenwise_stops, block_stops):
            assert error(multidraft_round(point_masses, stops)(world, ()), law) == 0
        assert error(traversal_round(point_masses)(world, ()), law) == 0


def test_traversal_is_block_verification_on_a_chain_and_never_worse_than_several_drafts() -> None:
    strict = [0, 0]
    for world in worlds(4, vocabulary=3):
        assert error(traversal_round(independent(1))(world, ()), chain_round(block_verdict)(world, ())) == 0
        tree, drafts, token = (
            sum(mass * (len(text) - 1) for text, mass in round_(world, ()).items())
            for round_ in (
                traversal_round(independent(2)),
                multidraft_round(independent(2), block_stops),
                multidraft_round(independent(2), tokenwise_stops),
            )
        )
        assert tree >= drafts >= token
        strict = [strict[0] + (tree > drafts), strict[1] + (drafts > token)]
    assert min(strict) > 0


def test_the_released_code_is_not_lossless() -> None:
    """The counterexample: p = (2/3, 1/3), q = (1/2, 1/2), two drafted tokens; AA is 7/18 instead of 4/9."""
    world = ConstantWorld((2, 1), (1, 1))
    released = chained(world, chain_round(uncapped_verdict), 2)
    assert released[0, 0] == Fraction(7, 18)
    for rule in CHAIN_RULES.values():
        assert chained(world, rule, 2)[0, 0] == Fraction(4, 9)
    # A single token's law does not show it.
    assert chained(world, chain_round(uncapped_verdict), 1) == {(0,): Fraction(2, 3), (1,): Fraction(1, 3)}
