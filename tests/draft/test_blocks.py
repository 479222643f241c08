"""Every drafted token is what plain decoding of the draft model gives from that prefix with the same noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.toy_draft import VOCABULARY, Rig, ScriptedTarget, sequential, toy_logits

from ssd_cluster.link.messages import Block, Next, Open
from ssd_cluster.sampling.coupled import coupled_scores
from ssd_cluster.sampling.processors import process
from ssd_cluster.types import ProposalKind, fingerprint

LAWS = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 9},
    {"temperature": 0.9, "top_p": 0.8},
    {"temperature": 1.0, "kind": ProposalKind.DELTA},
]


def expected_guesses(rig: Rig, opened: Open, context: tuple[int, ...]) -> list[int]:
    """All candidates for the token after ``context``, best first."""
    sampling = rig.reference(opened)
    logits = torch.from_numpy(toy_logits(context)[:VOCABULARY])[None]
    if sampling.noise is None:
        scores = logits[0]
    else:
        scores = coupled_scores(process(logits, [sampling.params]), [sampling.noise.row(len(context))])[0]
    order = np.argsort(-scores.numpy(), kind="stable")
    return [int(t) for t in order if scores[t] > -np.inf]


def check_block(rig: Rig, opened: Open, tokens: tuple[int, ...], proposal: tuple[int, ...], block: Block) -> None:
    """A complete block against brute force."""
    sampling = rig.reference(opened)
    assert (block.base_len, block.fingerprint) == (len(tokens), fingerprint(len(tokens), proposal))
    by_k: dict[int, list[int]] = {}
    scores: dict[int, list[float]] = {}
    for branch in block.branches:
        by_k.setdefault(branch.k, []).append(branch.t_star)
        scores.setdefault(branch.k, []).append(branch.score)
        prefix = (*tokens, *proposal[: branch.k], branch.t_star)
        limit = min(opened.k, opened.max_len - len(prefix))
        assert limit > 0
        assert list(branch.tokens) == sequential(prefix, limit, sampling, opened.stop_ids)
    for k, guesses in by_k.items():
        rejected = set(proposal[k : k + 1]) | set(opened.stop_ids)
        ranking = [t for t in expected_guesses(rig, opened, (*tokens, *proposal[:k])) if t not in rejected]
        assert guesses == ranking[: len(guesses)]
        assert scores[k] == sorted(scores[k], reverse=True)


def start(law: dict[str, object], **changes: object) -> tuple[Rig, ScriptedTarget, Open, tuple[int, ...]]:
    rig = Rig()
    target = rig.target()
    opened = target.open(**(law | changes))
    rig.settle()
    return rig, target, opened, opened.tokens


@pytest.mark.parametrize("law", LAWS)
def test_first_block_guesses_the_first_token(law: dict[str, object]) -> None:
    rig, target, opened, tokens = start(law)
    block = target.blocks()[-1]
    assert {branch.k for branch in block.branches} == {0}
    assert len(block.branches) == opened.rows
    check_block(rig, opened, tokens, (), block)


@pytest.mark.parametrize("law", LAWS)
def test_rounds_of_hits_misses_and_foreign_proposals(law: dict[str, object]) -> None:
    """A long chain of rounds whose proposals come from blocks, from elsewhere, or from nowhere."""
    rig, target, opened, tokens = start(law, max_len=60, k=3)
    rng = np.random.default_rng(5)
    block = target.blocks()[-1]
    proposal: tuple[int, ...] = ()
    covered = set()
    while len(tokens) < 50:
        guessed = [b for b in block.branches if b.k <= len(proposal)]
        if guessed and rng.random() < 0.7:  # a hit: the outcome is one of the branches
            branch = guessed[int(rng.integers(len(guessed)))]
            new, following = (*proposal[: branch.k], branch.t_star), branch.tokens
        else:
            k = int(rng.integers(len(proposal) + 1))
            new = (*proposal[:k], int(rng.integers(VOCABULARY)))
            following = tuple(rng.integers(VOCABULARY, size=int(rng.integers(4))).tolist())
        target.commit(len(tokens), new, proposal=following, rows=8)
        tokens, proposal = (*tokens, *new), following
        rig.settle()
        block = target.blocks()[-1]
        check_block(rig, opened, tokens, proposal, block)
        covered |= {branch.k for branch in block.branches}
    assert covered == {0, 1, 2, 3}


def test_rejected_token_and_stop_ids_are_never_guessed() -> None:
    rig, target, opened, tokens = start({"temperature": 0.0}, rows=40, stop_ids=(7, 8, 9))
    target.blocks()
    proposal = tuple(sequential(tokens, 3, rig.reference(opened)))
    for base in ((), (13,)):
        target.commit(len(tokens), base or (12,), proposal=proposal, rows=40)
        tokens = (*tokens, *(base or (12,)))
        rig.settle()
        block = target.blocks()[-1]
        assert block.branches
        for branch in block.branches:
            assert branch.t_star not in opened.stop_ids
            assert branch.t_star not in proposal[branch.k : branch.k + 1]


def test_a_chain_ends_after_a_stop_id() -> None:
    rig, target, opened, tokens = start({}, rows=30, k=6, stop_ids=tuple(range(0, 40, 2)))
    branches = target.blocks()[-1].branches
    ended = [b for b in branches if b.tokens and b.tokens[-1] in opened.stop_ids]
    assert ended
    assert all(not set(b.tokens[:-1]) & set(opened.stop_ids) for b in branches)
    assert any(len(b.tokens) < opened.k for b in ended)
    check_block(rig, opened, tokens, (), target.received[-1].blocks[0])


def test_nothing_follows_a_stop_id_inside_the_proposal() -> None:
    rig, target, _, tokens = start({}, rows=40, stop_ids=(7,))
    target.blocks()
    target.commit(len(tokens), (12,), proposal=(20, 7, 30), rows=40)
    rig.settle()
    assert {branch.k for branch in target.blocks()[-1].branches} == {0, 1}


@pytest.mark.parametrize("room", range(1, 7))
def test_nothing_is_drafted_at_or_beyond_max_len(room: int) -> None:
    rig, target, opened, tokens = start({}, rows=30, k=4, max_len=4 + room)
    target.blocks()
    target.commit(3, (9,), proposal=(20, 21, 22)[: max(0, room - 1)], rows=30, k=4)
    rig.settle()
    blocks = target.blocks()
    if room == 1:
        assert not blocks
        return
    for branch in blocks[-1].branches:
        assert 4 + branch.k + 1 + len(branch.tokens) <= opened.max_len
        assert branch.tokens
    check_block(rig, opened, (*tokens, 9), (20, 21, 22)[: room - 1], blocks[-1])
    assert max(branch.k for branch in blocks[-1].branches) == min(3, room - 2)


def test_only_served_lengths_get_branches() -> None:
    rig, target, _, tokens = start({}, rows=12, lengths=(0, 2))
    target.blocks()
    target.commit(len(tokens), (12,), proposal=(20, 21, 22), rows=12)
    rig.settle()
    assert {branch.k for branch in target.blocks()[-1].branches} == {0, 2}


@pytest.mark.parametrize(("rows", "k"), [(0, 3), (3, 0)])
def test_no_rows_or_no_depth_means_no_block(rows: int, k: int) -> None:
    rig, target, _, tokens = start({})
    target.blocks()
    target.commit(len(tokens), (12,), rows=rows, k=k)
    rig.settle()
    assert not target.blocks()


@pytest.mark.parametrize("law", LAWS)
def test_just_in_time_chain_then_tree_on_it(law: dict[str, object]) -> None:
    rig, target, opened, tokens = start(law)
    target.blocks()
    target.commit(len(tokens), (12,), next=Next.WAIT, rows=0, k=4)
    tokens = (*tokens, 12)
    rig.settle()
    (block,) = target.blocks()
    (branch,) = block.branches
    assert branch.jit
    assert (branch.k, block.fingerprint) == (0, fingerprint(len(tokens), ()))
    chain = (branch.t_star, *branch.tokens)
    assert list(chain) == sequential(tokens, 4, rig.reference(opened))
    target.commit(len(tokens), (), proposal=chain, rows=8)
    rig.settle()
    check_block(rig, opened, tokens, chain, target.blocks()[-1])


def test_chain_ends_at_a_stop_id_and_at_max_len() -> None:
    rig, target, opened, tokens = start({}, stop_ids=tuple(range(0, 60, 3)), max_len=7)
    target.blocks()
    target.commit(3, (12,), next=Next.WAIT, k=8)
    rig.settle()
    (branch,) = target.blocks()[-1].branches
    chain = [branch.t_star, *branch.tokens]
    assert chain == sequential((*tokens, 12), 3, rig.reference(opened), opened.stop_ids)


def test_proposal_longer_than_the_draft_serves_is_guessed_after_as_far_as_it_goes() -> None:
    rig, target, opened, tokens = start({}, rows=20)
    target.blocks()
    proposal = tuple(range(20, 60))
    target.commit(len(tokens), (12,), proposal=proposal, rows=20)
    rig.settle()
    block = target.blocks()[-1]
    assert max(branch.k for branch in block.branches) <= 8
    check_block(rig, opened, (*tokens, 12), proposal, block)
    target.commit(len(tokens) + 1, (*proposal, 3))
    rig.settle()
    assert target.blocks()[-1].base_len == len(tokens) + 42
