"""The package's ratio rules, run over every uniform and every draw: their exact law against plain decoding.

The worlds are those of test_ratio_rules.py; rows are float32, so a law may be off by rounding, far below 1e-6.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from support.exact_branches import independent, point_masses, without_replacement
from support.exact_code import (
    MakeLaw,
    chain_code,
    dense_law,
    follow_code,
    law_of,
    multidraft_code,
    naive_code,
    rows_of,
    sparse_law,
    traversal_code,
)
from support.exact_rules import (
    block_h,
    block_verdict,
    capped,
    chain_round,
    naive_round,
    ratios,
    scaled_residual,
    tokenwise_verdict,
    uncapped_verdict,
)
from support.exact_world import SHAPES, ConstantWorld, Round, World, chained, error, plain_round, worlds

from ssd_cluster.sampling.ratio_noise import RoundDraws
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import VerifyBatch, block, block_core, hsd_uncapped_lossy, token, tokenwise
from ssd_cluster.verify.block import block_rows, block_stop
from ssd_cluster.verify.chain import Chain, chains, largest_kept, log_ratios, pad, residual_rows, row_probability
from ssd_cluster.verify.tokenwise import tokenwise_stop, tokenwise_thresholds

TOLERANCE = 1e-6
CHAIN_CODE: dict[str, Any] = {
    "token": lambda make: chain_code("token", make),
    "block": lambda make: chain_code("block", make),
    "hsd": lambda make: chain_code("hsd", make),
    "naive_hsd": naive_code,
}
BRANCH_CODE: dict[str, Any] = {
    "drafts_token": lambda make: multidraft_code(independent(2), tokenwise_stop, make),
    "drafts_hsd": lambda make: multidraft_code(independent(2), block_stop, make),
    "drafts_hsd_without_replacement": lambda make: multidraft_code(without_replacement(2), block_stop, make),
    "drafts_hsd_point_masses": lambda make: multidraft_code(point_masses, block_stop, make),
    "tree": lambda make: traversal_code(independent(2), make),
    "tree_without_replacement": lambda make: traversal_code(without_replacement(2), make),
    "tree_point_masses": lambda make: traversal_code(point_masses, make),
}
BRANCH_SHAPES: dict[str, dict[str, Any]] = {
    "full": {"gamma": 2},
    "zeros": {"vocabulary": 3, "p": "zeros", "q": "zeros"},
    "one_hot_q": {"vocabulary": 3, "q": "one_hot"},
    "eos_adaptive": {"eos": 1, "adaptive": True, "vocabulary": 3},
}
BOTH = ("zeros", "eos_adaptive", "zeros_in_q", "adaptive")
"""Shapes for which sparse and dense laws are both run; the others take turns."""


def cases(shapes: dict[str, Any]) -> list[Any]:
    listed = []
    for i, shape in enumerate(shapes):
        makes = [("dense", dense_law), ("sparse", sparse_law)]
        chosen = makes if shape in BOTH else [makes[i % 2]]
        listed += [pytest.param(shape, make, id=f"{shape}-{name}") for name, make in chosen]
    return listed


def loss(world: World, round_: Round, length: int | None = None) -> float:
    length = world.gamma + 2 if length is None else length
    return float(error(chained(world, round_, length), chained(world, plain_round, length)))


@pytest.mark.parametrize(("shape", "make"), cases(SHAPES))
@pytest.mark.parametrize("rule", CHAIN_CODE)
def test_chain_rules(rule: str, shape: str, make: MakeLaw) -> None:
    assert loss(World(seed=1, **SHAPES[shape]), CHAIN_CODE[rule](make)) < TOLERANCE


@pytest.mark.parametrize(("shape", "make"), cases(BRANCH_SHAPES))
@pytest.mark.parametrize("rule", BRANCH_CODE)
def test_several_drafts_and_trees(rule: str, shape: str, make: MakeLaw) -> None:
    assert loss(World(seed=2, **BRANCH_SHAPES[shape]), BRANCH_CODE[rule](make), 4) < TOLERANCE


def test_drafts_that_go_on_where_the_prefix_ratio_is_below_1() -> None:
    world = ConstantWorld((9, 6, 5), (45, 1, 4))
    for rule in ("drafts_hsd", "tree"):
        assert loss(world, BRANCH_CODE[rule](dense_law), 2) < TOLERANCE


def test_follow() -> None:
    for fields in BRANCH_SHAPES.values():
        assert loss(World(seed=2, **fields), follow_code(point_masses)) < TOLERANCE


@pytest.mark.parametrize("shape", ["three_tokens", "zeros", "adaptive", "equal"])
def test_each_round_has_the_law_of_its_rule(shape: str) -> None:
    """Not only lossless: as many tokens are kept as the rule promises, path by path."""
    pairs: list[tuple[Round, Round]] = [
        (chain_code("token"), chain_round(tokenwise_verdict)),
        (chain_code("block", sparse_law), chain_round(block_verdict)),
        (naive_code(), naive_round),
        (chain_code(hsd_uncapped_lossy), chain_round(uncapped_verdict)),
    ]
    for world in worlds(2, **SHAPES[shape]):
        for code, rule in pairs:
            assert error(code(world, ()), rule(world, ())) < TOLERANCE


def test_the_lossy_variant_reproduces_the_counterexample() -> None:
    world = ConstantWorld((2, 1), (1, 1))
    assert float(chained(world, chain_code(hsd_uncapped_lossy), 2)[0, 0]) == pytest.approx(7 / 18, abs=TOLERANCE)
    assert float(chained(world, chain_code("hsd"), 2)[0, 0]) == pytest.approx(4 / 9, abs=TOLERANCE)


def test_a_missing_or_foreign_law_is_verified_as_a_point_mass() -> None:
    """Late laws and laws that deny the drafted token: the text is the target's all the same."""

    def refusing(laws: Any, vocabulary: int) -> Any:
        return dense_law([law[1:] + law[:1] for law in laws], vocabulary)

    def missing(laws: Any, vocabulary: int) -> Any:
        return None

    refused = 0
    for rule in (token, block):

        def counting(batch: VerifyBatch, rule: Any = rule) -> Any:
            nonlocal refused
            outcomes = rule(batch)
            refused += outcomes[0].law_refused
            return [type(outcomes[0])(o.kept, o.next_token) for o in outcomes]

        world = World(seed=4, vocabulary=3, q="one_hot", gamma=2)
        assert loss(world, chain_code(counting, refusing)) < TOLERANCE
        assert loss(world, chain_code(counting, missing)) < TOLERANCE
    assert refused > 0


# --- the batched, padded cores


def padded_paths(world: World) -> tuple[list[tuple[int, ...]], list[Chain]]:
    paths = [x for x, _ in world.chains(())]
    listed = []
    for x in paths:
        P, Q = world.rows((), x)
        listed.append(
            Chain(rows_of(P, world.vocabulary), dense_law(Q, world.vocabulary), torch.tensor(x, dtype=torch.int64))
        )
    return paths, listed


@pytest.mark.parametrize("shape", [name for name in SHAPES if name != "both_one_hot"])
def test_thresholds_and_residuals_of_the_padded_cores(shape: str) -> None:
    """All paths of a world in one ragged batch, against rational arithmetic path by path."""
    for world in worlds(2, **SHAPES[shape]):
        paths, listed = padded_paths(world)
        P, Q, x, n, _, _ = pad(listed)
        h, rho = block_rows(P, Q, x, n)
        ratio = tokenwise_thresholds(log_ratios(row_probability(P[:, :-1], x), row_probability(Q, x)), n)
        for b, path in enumerate(paths):
            exact_P, exact_Q = world.rows((), path)
            r = ratios(exact_P, exact_Q, path)
            behind = [0.0] * (x.shape[1] - len(path))
            assert h[b].tolist() == pytest.approx([*map(float, block_h(exact_P, exact_Q, path)), *behind], abs=1e-6)
            assert rho[b, : len(path) + 1].tolist() == pytest.approx([*map(float, capped(r))], abs=1e-6)
            assert ratio[b].tolist() == pytest.approx([*(min(1.0, float(one)) for one in r), *behind], abs=1e-6)
        for t in range(x.shape[1] + 1):
            kept = n.clamp(max=t)
            weights = residual_rows(P, Q, kept, n, rho.gather(1, kept.unsqueeze(1)).squeeze(1))
            for b, path in enumerate(paths):
                exact_P, exact_Q = world.rows((), path)
                tau = int(kept[b])
                if h[b, tau] == 0 or (tau < len(path) and not float(weights[b].sum())):
                    continue
                wanted = exact_P[tau] if tau == len(path) else scaled_residual(exact_P, exact_Q, path, tau)
                got = weights[b].double() / weights[b].double().sum()
                assert got.tolist() == pytest.approx([*map(float, wanted)], abs=2e-6)


def test_largest_kept_is_the_largest_index_that_passes() -> None:
    h = torch.tensor([[1.0, 0.3, 0.7, 0.5]])
    for u in itertools.product([0.0, 0.2, 0.4, 0.6, 0.8], repeat=3):
        wanted = max(t for t in range(4) if t == 0 or u[t - 1] < float(h[0, t]))
        assert largest_kept(h, torch.tensor([u])).tolist() == [wanted]


def random_batch(vocabulary: int, lengths: list[int], seed: int) -> VerifyBatch:
    """Proposals drawn from laws with different supports, sparse and dense mixed."""
    generator = torch.Generator().manual_seed(seed)
    proposals, rows, laws, draws = [], [], [], []
    for b, n in enumerate(lengths):
        P = torch.softmax(torch.randn(n + 1, vocabulary, generator=generator) * 2, -1)
        P = P.masked_fill(torch.rand(P.shape, generator=generator) < 0.3, 0.0)
        P /= P.sum(-1, keepdim=True)
        Q = torch.softmax(P[:n].clamp(min=1e-3).log() + torch.randn(n, vocabulary, generator=generator), -1)
        x = torch.multinomial(Q, 1, generator=generator).squeeze(1) if n else torch.empty(0, dtype=torch.int64)
        rows_of_q = [tuple(row) for row in Q.tolist()]
        sparse = b % 2 == 1
        laws.append((sparse_law if sparse else dense_law)(rows_of_q, vocabulary))
        proposals.append(Proposal(7, tuple(x.tolist()), ProposalKind.SPARSE if sparse else ProposalKind.DENSE))
        rows.append(P)
        draws.append(RoundDraws(seed * 1000 + b, 3, 7, vocabulary))
    return VerifyBatch(proposals, torch.cat(rows), [None] * sum(n + 1 for n in lengths), laws, draws)


def test_padded_cores_agree_with_the_chain_functions_on_ragged_batches() -> None:
    agreed = []
    for seed in range(25):
        batch = random_batch(50, [0, 1, 7, 3, 5, 7, 2, 15], seed)
        for rule, core in ((token, tokenwise), (block, block_core)):
            kept, following = core(*pad(list(chains(batch))))
            wanted = [(o.kept, o.next_token) for o in rule(batch)]
            assert list(zip(kept.tolist(), following.tolist(), strict=True)) == wanted
            agreed += [k for k, _ in wanted]
    assert len(set(agreed)) > 8


def test_law_of_covers_all_branches() -> None:
    law = law_of(lambda branches: (branches.choose([0.5, 0.25, 0.25]), branches.choose([0.1, 0.0, 0.9])))
    assert sum(law.values()) == pytest.approx(1)
    assert law[2, 2] == pytest.approx(0.225)
    assert len(law) == 6
