"""Every mutation named in the specification is applied, to the rules and to the package's code, and caught.

Enumeration of chained rounds catches them all; the law of a single token misses some for any table, which is why
sampling tests of one token are not enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from support.exact_branches import block_stops, independent, multidraft_round
from support.exact_code import Uniform, Uniforms, chain_code
from support.exact_rules import (
    block_family,
    block_h,
    capped,
    chain_round,
    normalised,
    positive,
    ratios,
    tokenwise_verdict,
    uncapped_h,
)
from support.exact_world import ONE, ZERO, ConstantWorld, Law, Round, Text, World, chained, error, plain_round, worlds

from ssd_cluster.verify import DenseLaw, hsd_uncapped_lossy
from ssd_cluster.verify.block import block_core
from ssd_cluster.verify.chain import Chain
from ssd_cluster.verify.tokenwise import tokenwise

BLOCK = sys.modules["ssd_cluster.verify.block"]
TOKENWISE = sys.modules["ssd_cluster.verify.tokenwise"]


def loss(world: World, round_: Round, length: int) -> Any:
    return error(chained(world, round_, length), chained(world, plain_round, length))


# --- the rules


def first_failure(h: list[Fraction]) -> list[Fraction]:
    """Stops at the first failing h."""
    mass, alive = [], ONE
    for t in range(len(h)):
        following = h[t + 1] if t + 1 < len(h) else ZERO
        mass.append(alive * (1 - following))
        alive *= following
    return mass


def one_uniform(h: list[Fraction]) -> list[Fraction]:
    """The largest t with u < h_t, u the same for all t."""
    reach = [max(h[t:]) for t in range(len(h))]
    return [a - b for a, b in zip(reach, [*reach[1:], ZERO], strict=True)]


def plain_residual(P: list[Law], Q: list[Law], x: Text, t: int) -> Law:
    return normalised(positive(ONE, P[t], Q[t]), P[t])


def halved_start(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    return [Fraction(1, 2), *block_h(P, Q, x)[1:]]


GRID = 1000


def kept_by_or_equal(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    """u <= h with u = 0, 1/N, ..: every threshold is one step of the grid too high."""
    return [ONE, *(min(ONE, Fraction(int(h * GRID) + 1, GRID)) for h in block_h(P, Q, x)[1:])]


def eps_in_q(P: list[Law], Q: list[Law], x: Text) -> list[Fraction]:
    """A small number added to q before dividing."""
    return block_h(P, [tuple(q + Fraction(1, 100) for q in row) for row in Q], x)


MUTATIONS: dict[str, Round] = {
    "residual p - q after a block stop": chain_round(block_family(residual=plain_residual)),
    "stop at the first failing h": chain_round(block_family(choice=first_failure)),
    "one uniform for all positions": chain_round(block_family(choice=one_uniform)),
    "uncapped last position": chain_round(block_family(uncapped_h)),
    "h_0 below 1": chain_round(block_family(halved_start)),
    "kept by <=": chain_round(block_family(kept_by_or_equal)),
    "eps added to q": chain_round(block_family(eps_in_q)),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_enumeration_catches(mutation: str) -> None:
    assert any(loss(world, MUTATIONS[mutation], world.gamma + 2) > 0 for world in worlds(4, vocabulary=3))


def test_the_law_of_one_token_does_not_show_them() -> None:
    tables = worlds(4, vocabulary=3)
    hidden = {name for name, round_ in MUTATIONS.items() if all(loss(world, round_, 1) == 0 for world in tables)}
    assert hidden == {"residual p - q after a block stop", "uncapped last position"}


def test_a_prefix_ratio_carried_from_draft_to_draft_is_caught() -> None:
    carried = multidraft_round(independent(2), block_stops, carry=True)
    assert loss(ConstantWorld((9, 6, 5), (45, 1, 4)), carried, 2) > Fraction(1, 1000)


def test_the_pieces_without_mutation_are_the_rule() -> None:
    for world in worlds(4, gamma=3):
        assert loss(world, chain_round(block_family()), world.gamma + 2) == 0
        for x, _ in world.chains(()):
            P, Q = world.rows((), x)
            assert capped(ratios(P, Q, x))[-1] == block_h(P, Q, x)[-1]
            assert tokenwise_verdict(P, Q, x)


# --- the package's code


def forward(chain: Chain, log_rho: list[float], last: float) -> int:
    """``last_kept`` that stops at the first failing h."""
    uniforms: Any = chain.uniforms
    kept = 0
    for t in range(1, chain.n + 1):
        h = last if t == chain.n else BLOCK.inner_thresholds(chain, log_rho)(t)  # type: ignore[attr-defined]
        if not uniforms.tolist()[t - 1] < h:
            break
        kept = t
    return kept


def shared(branches: Any, n: int) -> Uniforms:
    return Uniforms([Uniform(branches)] * n)


def halved(original: Callable[..., Any]) -> Callable[..., Any]:
    """``stopped`` that draws from P_0 half of the time when nothing is kept."""

    def stopped(chain: Chain, kept: int, rho: float) -> Any:
        noise: Any = chain.noise
        if kept == 0 and chain.n and noise.branches.choose([0.5, 0.5]):
            chain = Chain(chain.rows[:1], DenseLaw(chain.rows[:0]), chain.tokens[:0], None, chain.noise)
        return original(chain, kept, rho)

    return stopped


def mutate(name: str, monkeypatch: pytest.MonkeyPatch) -> Round:
    original = BLOCK.stopped  # type: ignore[attr-defined]
    if name == "residual":
        monkeypatch.setattr(BLOCK, "stopped", lambda chain, kept, rho: original(chain, kept, 1.0))
    elif name == "first":
        monkeypatch.setattr(BLOCK, "last_kept", forward)
    elif name == "uniform":
        monkeypatch.setattr(Uniforms, "fresh", shared)
    elif name == "start":
        monkeypatch.setattr(BLOCK, "stopped", halved(original))
    else:
        return chain_code(hsd_uncapped_lossy)
    return chain_code("block")


@pytest.mark.parametrize("mutation", ["residual", "first", "uniform", "start", "uncapped"])
def test_enumeration_of_the_code_catches(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = worlds(2, vocabulary=3)
    assert all(float(loss(world, chain_code("block"), 3)) < 1e-6 for world in tables)
    mutated = mutate(mutation, monkeypatch)
    assert max(float(loss(world, mutated, 3)) for world in tables) > 1e-4


def test_a_uniform_of_zero_keeps_nothing_that_p_excludes() -> None:
    """``<=`` in place of ``<`` would: u can be 0 and so can p(x)."""
    P = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    Q, x, n = torch.tensor([[[0.5, 0.5]]]), torch.tensor([[0]]), torch.tensor([1])
    for core in (tokenwise, block_core):
        kept, following = core(P, Q, x, n, torch.zeros(1, 1), torch.ones(1, 2))
        assert (kept.item(), following.item()) == (0, 1)
    chain = Chain(P[0], DenseLaw(Q[0]), x[0], torch.zeros(1), torch.ones(2))
    for module, function in ((TOKENWISE, "tokenwise_chain"), (BLOCK, "block_chain")):
        outcome = getattr(module, function)(chain)
        assert (outcome.kept, outcome.next_token) == (0, 1)
