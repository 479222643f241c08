"""Ratio mode on the draft: the law that is sent is the one the token was drawn from, and no draw is used twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from support.toy_draft import HASH, PADDED, VOCABULARY, Rig, ScriptedTarget
from torch import Tensor

from ssd_cluster.draft.laws import LawDraw, LawTerms, draw
from ssd_cluster.draft.sampler import RowSampler
from ssd_cluster.link.laws import id_rows, probability_rows
from ssd_cluster.link.messages import Block, Hello, Law, NackCode, Next, Open
from ssd_cluster.sampling.ratio_noise import DraftDraws
from ssd_cluster.types import BlockOrigin, ProposalKind, fingerprint

SPARSE, DENSE = ProposalKind.SPARSE, ProposalKind.DENSE
Q = torch.tensor([0.05, 0.4, 0.2, 0.3, 0.05])


def terms(kind: ProposalKind, top_m: int = 3, c: float = 1.0, f: int = 1, vocabulary: int = 5) -> LawTerms:
    return LawTerms(kind, top_m, c, f, DraftDraws(3, vocabulary))


def draws(kind: ProposalKind, n: int, names: Tensor | None = None, **fields: Any) -> tuple[Counter[int], Tensor]:
    """``n`` draws from Q, and the law they are said to come from, by target id."""
    told = terms(kind, **fields, vocabulary=5 if names is None else 9)
    results = draw(Q.repeat(n, 1), [LawDraw(told, 5, i) for i in range(n)], names)
    row = results[0][1]
    law = torch.zeros(9)
    ids = row.ids if row.ids is not None else torch.arange(5) if names is None else names
    law[ids] = row.probabilities
    return Counter(token for token, _ in results), law


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (DENSE, {}, [0.05, 0.4, 0.2, 0.3, 0.05]),
        (SPARSE, {"top_m": 3}, [0, 0.4 / 0.9, 0.2 / 0.9, 0.3 / 0.9, 0]),
        (SPARSE, {"top_m": 50}, [0.05, 0.4, 0.2, 0.3, 0.05]),
        (DENSE, {"c": 0.5, "f": 2}, [0.05 / 0.65, 0.2 / 0.65, 0.2 / 0.65, 0.15 / 0.65, 0.05 / 0.65]),
        (SPARSE, {"top_m": 3, "c": 0.0, "f": 1}, [0, 0, 0.4, 0.6, 0]),
        (SPARSE, {"top_m": 2, "c": 0.0, "f": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
    ],
)
@pytest.mark.parametrize("names", [None, torch.tensor([1, 2, 4, 6, 8])], ids=["whole", "reduced"])
def test_the_law_is_what_was_drawn_from(
    kind: ProposalKind, fields: dict[str, Any], expected: list[float], names: Tensor | None
) -> None:
    n = 3000
    counts, law = draws(kind, n, names, **fields)
    wanted = torch.zeros(9)
    wanted[torch.arange(5) if names is None else names] = torch.tensor(expected)
    assert torch.allclose(law, wanted, atol=1e-6)
    for token, p in enumerate(wanted.tolist()):
        assert counts[token] / n == pytest.approx(p, abs=5 * (p * (1 - p) / n) ** 0.5)


def test_every_row_of_a_sparse_law_has_the_same_size() -> None:
    cut = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0], [0.2] * 5])
    rows = [row for _, row in draw(cut, [LawDraw(terms(SPARSE), 1, i) for i in range(2)], None)]
    assert [row.probabilities.shape[0] for row in rows] == [3, 3]
    assert all(torch.unique(row.ids).shape[0] == 3 for row in rows if row.ids is not None)


def test_a_new_epoch_has_other_draws() -> None:
    sampler = RowSampler(VOCABULARY, PADDED, None, torch.device("cpu"), 8)
    opened = [sampler.session(message(epoch=epoch)).laws for epoch in (1, 2)]
    rows = [told.draws.row(5, 0) for told in opened if told is not None]
    assert not torch.equal(rows[0], rows[1])


def message(**changes: Any) -> Open:
    fields = {
        "session": 1,
        "epoch": 1,
        "tokens": (3, 4, 5),
        "kind": SPARSE,
        "temperature": 1.0,
        "seed": 7,
        "top_k": 0,
        "top_p": 1.0,
        "stop_ids": (),
        "max_len": 100,
        "k": 3,
        "rows": 6,
        "top_m": 8,
    }
    return Open(**(fields | changes))


def greet(rig: Rig, *kinds: ProposalKind) -> ScriptedTarget:
    """A target that says in Hello that it verifies ``kinds``."""
    target = rig.target(hello=False)
    target.stream.send(Hello("t", 1, HASH, VOCABULARY, kinds=kinds, trust_domain="here"))
    return target


@pytest.fixture
def rig() -> Rig:
    return Rig(trust_domain="here")


def last_block(target: ScriptedTarget) -> Block:
    return target.blocks()[-1]


@pytest.mark.parametrize("kind", [SPARSE, DENSE])
def test_the_law_of_the_proposal_that_a_commit_names(rig: Rig, kind: ProposalKind) -> None:
    target = greet(rig, kind)
    target.open(kind=kind, top_m=8)
    rig.settle()
    pushed = last_block(target)
    branch = pushed.branches[2]
    proposal = branch.tokens[:2]
    target.commit(
        3, (branch.t_star,), proposal=proposal, proposal_kind=kind, origin=BlockOrigin(pushed.block_seq, 2, 0)
    )
    rig.settle()
    (law,) = target.of(Law)
    assert (law.fingerprint, law.kind, len(law.row_size)) == (fingerprint(4, proposal), kind, 2)
    for t, row in enumerate(probability_rows(law)):
        entries = dict(
            zip(id_rows(law)[t].tolist() if kind is SPARSE else range(VOCABULARY), row.tolist(), strict=True)
        )
        assert len(entries) == (8 if kind is SPARSE else VOCABULARY)
        assert entries[proposal[t]] > 0


def test_no_law_for_tokens_that_are_not_those_of_the_branch(rig: Rig) -> None:
    target = greet(rig, SPARSE)
    target.open(kind=SPARSE, top_m=8)
    rig.settle()
    pushed = last_block(target)
    branch = pushed.branches[0]
    other = tuple((token + 1) % VOCABULARY for token in branch.tokens)
    origin = BlockOrigin(pushed.block_seq, 0, 0)
    target.commit(3, (branch.t_star,), proposal=other, proposal_kind=SPARSE, origin=origin)
    rig.settle()
    assert target.of(Law) == []
    assert rig.count("ssd:draft_laws_total", result="missing") == 1


def test_a_chain_has_the_law_of_its_first_token_too(rig: Rig) -> None:
    target = greet(rig, SPARSE)
    target.open(kind=SPARSE, top_m=8)
    rig.settle()
    target.commit(3, (9,), next=Next.WAIT, deadline_us=10**9)
    rig.settle()
    pushed = last_block(target)
    (chain,) = pushed.branches
    tokens = (chain.t_star, *chain.tokens)
    target.commit(4, (), proposal=tokens, proposal_kind=SPARSE, origin=BlockOrigin(pushed.block_seq, 0, 0))
    rig.settle()
    (law,) = target.of(Law)
    assert (law.fingerprint, len(law.row_size)) == (fingerprint(4, tokens), 3)


def test_drafting_goes_on_behind_a_stop_id_and_says_nothing_of_it(rig: Rig) -> None:
    everything = tuple(range(0, VOCABULARY, 2))
    target = greet(rig, SPARSE)
    target.open(kind=SPARSE, top_m=8, stop_ids=everything, rows=8)
    rig.settle()
    pushed = last_block(target)
    (session,) = rig.engine._table.sessions()
    assert session.build is not None
    assert all(len(session.build.drafted(i)[0]) == 3 for i in range(len(pushed.branches)))
    for branch in pushed.branches:
        assert not any(token in everything for token in branch.tokens[:-1])
    assert any(len(branch.tokens) < 3 for branch in pushed.branches)


def test_every_tree_and_chain_has_a_round_of_its_own(rig: Rig) -> None:
    target = greet(rig, SPARSE)
    target.open(kind=SPARSE, top_m=8)
    seen = []
    for length in range(3, 9):
        rig.settle()
        (session,) = rig.engine._table.sessions()
        assert session.build is not None
        seen.append(session.build.ratio_round)
        target.commit(length, (5,), next=Next.WAIT if length % 2 else Next.NONE, deadline_us=10**9)
    assert seen == sorted(set(seen))
    assert None not in seen


def test_who_did_not_say_that_it_uses_laws_gets_none() -> None:
    for kinds, changes, said in (
        ((ProposalKind.COUPLED,), {}, "Hello"),
        ((SPARSE,), {"top_m": 0}, "top_m"),
        ((SPARSE,), {"saguaro_f": 1, "top_m": 8, "k": 3}, None),
    ):
        rig = Rig(trust_domain="here")
        target = greet(rig, *kinds)
        target.open(**({"kind": SPARSE, "top_m": 8} | changes))
        rig.settle()
        nacks = [one for one in target.take() if hasattr(one, "code")]
        assert [one.code for one in nacks] == ([NackCode.MISMATCH] if said else [])
        assert said is None or said in nacks[0].detail


def test_a_draft_outside_the_trust_domain_refuses_every_session() -> None:
    rig = Rig(trust_domain="elsewhere")
    target = greet(rig, SPARSE)
    target.open(kind=SPARSE, top_m=8)
    rig.settle()
    (nack,) = [one for one in target.take() if hasattr(one, "code")]
    assert nack.code is NackCode.MISMATCH
    assert "trust domain" in nack.detail
