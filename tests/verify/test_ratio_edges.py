"""Edge cases of the ratio rules, one by one, on the functions that serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_cluster.errors import NumericalError
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.sampling.ratio_noise import RoundDraws
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import (
    DenseLaw,
    DraftLaw,
    Outcome,
    SparseLaw,
    VerifyBatch,
    block,
    equality,
    rules_for,
    select,
    token,
    verify,
)
from ssd_cluster.verify.chain import capped_log_prefix, chains

RULES = pytest.mark.parametrize("rule", [token, block], ids=["token", "block"])
Rule = Callable[[VerifyBatch], list[Outcome]]


@dataclass
class FixedDraws:
    """Chosen uniforms; noise under which the likeliest token of a row wins."""

    uniforms: list[float]
    vocabulary: int
    base: int = 0

    def accept(self, n: int) -> Tensor:
        return torch.tensor(self.uniforms[:n])

    def residual(self, position: int) -> Tensor:
        return torch.ones(self.vocabulary)


def one(rule: Rule, P: Tensor, law: DraftLaw | None, x: tuple[int, ...], u: list[float] | None) -> Outcome:
    draws: Any = None if u is None else FixedDraws(u, P.shape[1])
    batch = VerifyBatch([Proposal(4, x, ProposalKind.DENSE)], P, [None] * len(P), [law], [draws])
    (outcome,) = rule(batch)
    return outcome


def hot(*ids: int, vocabulary: int = 4) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(ids), vocabulary).float()


FLAT = DenseLaw(torch.full((3, 4), 0.25))


@RULES
def test_one_hot_rows_keep_the_longest_match_without_draws(rule: Rule) -> None:
    P = hot(1, 2, 3, 0)
    for x, wanted in (((1, 2, 3), (3, 0)), ((1, 2, 0), (2, 3)), ((1, 0, 3), (1, 2)), ((0, 2, 3), (0, 1))):
        outcomes = [one(rule, P, FLAT, x, None), *(one(rule, P, FLAT, x, [u] * 3) for u in (0.0, 0.5, 1 - 2**-24))]
        assert {(o.kept, o.next_token) for o in outcomes} == {wanted}
        greedy = equality(VerifyBatch([Proposal(4, x, ProposalKind.DELTA)], P, [None] * 4))
        assert greedy == [Outcome(*wanted)]


@RULES
def test_rows_that_are_not_one_hot_need_draws(rule: Rule) -> None:
    with pytest.raises(ValueError, match="proposal 0 needs draws"):
        one(rule, torch.full((2, 4), 0.25), FLAT, (1,), None)


@RULES
def test_p_of_zero_is_never_kept_and_never_drawn(rule: Rule) -> None:
    P = torch.tensor([[0.0, 0.5, 0.5, 0.0]] * 4)
    outcome = one(rule, P, FLAT, (0, 1, 2), [0.0, 0.0, 0.0])
    assert outcome.kept == 0
    for seed in range(200):
        draws = RoundDraws(seed, 0, 3, 4)
        batch = VerifyBatch([Proposal(3, (1, 3, 1), ProposalKind.DENSE)], P, [None] * 4, [FLAT], [draws])
        (outcome,) = rule(batch)
        assert outcome.kept <= 1
        assert outcome.next_token in (1, 2)


@RULES
def test_tokens_outside_the_vocabulary_are_never_kept(rule: Rule) -> None:
    P = torch.full((2, 4), 0.25)
    for x in (-1, 4, 2**31):
        assert one(rule, P, FLAT, (x,), [0.0]).kept == 0


@RULES
def test_a_law_that_denies_the_token_is_refused_and_counted(rule: Rule) -> None:
    """Verified as a point mass: kept with probability p(x), otherwise any other token of p."""
    P = torch.tensor([[0.3, 0.4, 0.3], [0.2, 0.3, 0.5]])
    wrong = DenseLaw(torch.tensor([[0.0, 0.5, 0.5]]))
    for law in (wrong, SparseLaw(torch.tensor([[1, 2]]), torch.tensor([[0.5, 0.5]])), DenseLaw(wrong.rows[:0])):
        kept, dropped = (one(rule, P, law, (0,), [u]) for u in (0.29, 0.31))
        assert (kept.kept, kept.next_token, kept.law_refused) == (1, 2, True)
        assert (dropped.kept, dropped.next_token, dropped.law_refused) == (0, 1, True)
    late = one(rule, P, None, (0,), [0.31])
    assert (late.kept, late.law_refused) == (0, False)
    assert late == Outcome(0, 1, law_refused=True)


@RULES
def test_equal_laws_keep_everything(rule: Rule) -> None:
    """S_t = 0 with rho_t = 1: h = 1."""
    generator = torch.Generator().manual_seed(0)
    P = torch.softmax(torch.randn(4, 50, generator=generator), -1)
    x = tuple(torch.multinomial(P[:3], 1, generator=generator).squeeze(1).tolist())
    assert one(rule, P, DenseLaw(P[:3].clone()), x, [1 - 2**-24] * 3).kept == 3


def test_where_nothing_weighs_the_residual_is_p() -> None:
    """Rounding can stop a rule where p = q; it must still draw."""
    P = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    batch = VerifyBatch([Proposal(0, (1,), ProposalKind.DENSE)], P, [None] * 2, [DenseLaw(P[:1].clone())], [None])
    object.__setattr__(batch, "draws", [FixedDraws([1.0], 2)])  # u = 1 does not occur: it forces the stop
    assert block(batch) == token(batch) == [Outcome(0, 1)]


def test_a_prefix_ratio_of_huge_and_tiny_factors_stays_in_range() -> None:
    """Joint probabilities of 60 tokens at 1e-30 would be 0 in any format."""
    ratios = torch.tensor([[69.0, -69.0, -69.0, -700.0, 700.0, -torch.inf, 69.0]], dtype=torch.float64)
    rho = capped_log_prefix(ratios).exp()[0].tolist()
    assert rho[:3] == [1.0, 1.0, pytest.approx(1e-30, rel=0.1)]
    assert rho[6:] == [0.0, 0.0]
    assert all(0 <= value <= 1 for value in rho)
    walk = torch.full((1, 60), -30 * 2.302585, dtype=torch.float64).repeat_interleave(2, 1)
    walk[0, 1::2] *= -1
    assert float(capped_log_prefix(walk).exp()[0, -1]) == pytest.approx(1)


@RULES
def test_no_proposal_and_ragged_mixed_batches(rule: Rule) -> None:
    """Every kind in one batch, each by its rule; nobody's outcome depends on the others."""
    generator = torch.Generator().manual_seed(7)
    vocabulary, kinds = 30, list(ProposalKind)
    proposals, rows, noise, laws, draws = [], [], [], [], []
    for b in range(15):
        kind = kinds[b % 5]
        n = 0 if kind is ProposalKind.NONE else b % 4
        greedy = b % 7 == 3
        params = RowParams(0.0 if greedy else 0.8, top_k=10)
        P = process(torch.randn(n + 1, vocabulary, generator=generator) * 3, [params] * (n + 1))
        q = torch.softmax(torch.randn(n, vocabulary, generator=generator), -1)
        x = tuple(torch.multinomial(q, 1, generator=generator).squeeze(1).tolist()) if n else ()
        source = NoiseSource(b, vocabulary)
        proposals.append(Proposal(9, x, kind))
        rows.append(P)
        noise += [None if greedy else source.row(9 + t) for t in range(n + 1)]
        ratio = kind in (ProposalKind.SPARSE, ProposalKind.DENSE)
        laws.append(DenseLaw(q) if ratio else None)
        draws.append(RoundDraws(b, 1, 9, vocabulary) if ratio and not greedy else None)
    batch = VerifyBatch(proposals, torch.cat(rows), noise, laws, draws)
    rules = rules_for(ProposalKind.DENSE, "token" if rule is token else "block")
    together = verify(batch, rules)
    assert together == [verify(select(batch, [b]), rules)[0] for b in range(15)]
    assert {o.kept for o in together} != {0}
    backwards = verify(select(batch, list(range(14, -1, -1))), rules)
    assert backwards == together[::-1]


@RULES
def test_unusable_rows_are_an_error(rule: Rule) -> None:
    for P in (torch.full((2, 4), torch.nan), torch.zeros(2, 4)):
        with pytest.raises(NumericalError):
            one(rule, P, FLAT, (1,), [0.5])


@RULES
def test_laws_of_more_rows_than_were_run_are_shortened(rule: Rule) -> None:
    """A proposal cut to fit the batch keeps the rows of what is left."""
    P = hot(1, 2)
    assert one(rule, P, FLAT, (1,), [0.5]) == Outcome(1, 2)


def test_uniforms_of_a_position_do_not_depend_on_what_was_drafted() -> None:
    P = torch.full((3, 4), 0.25)
    draws = RoundDraws(1, 2, 3, 4)
    for x in ((0, 1), (3, 3)):
        batch = VerifyBatch([Proposal(3, x, ProposalKind.DENSE)], P, [None] * 3, [FLAT], [draws])
        (chain,) = chains(batch)
        assert chain.uniforms is not None
        assert torch.equal(chain.uniforms, draws.accept(2))
        assert chain.noise is draws.residual(3)


def test_wrong_numbers_of_laws_or_draws_are_refused() -> None:
    P = hot(1, 2)
    with pytest.raises(ValueError, match="1 proposals, but 2 laws"):
        VerifyBatch([Proposal(0, (1,), ProposalKind.DENSE)], P, [None] * 2, [None, None])
    with pytest.raises(ValueError, match="1 proposals, but 2 draws"):
        VerifyBatch([Proposal(0, (1,), ProposalKind.DENSE)], P, [None] * 2, [], [None, None])


def test_bf16_logits_become_float32_rows() -> None:
    logits = torch.randn(2, 4).bfloat16()
    P = process(logits, [RowParams(1.0)] * 2)
    assert P.dtype == torch.float32
    torch.testing.assert_close(P.double(), torch.softmax(logits.double(), -1), atol=3e-7, rtol=0)
