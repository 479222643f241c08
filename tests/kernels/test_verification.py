"""The torch references of block and token-wise verification, case by case and against an oracle in Python floats."""

from __future__ import annotations

import doctest

import pytest
import torch
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.verification import api, block_verify, chain_verify, token_verify
from support.kernel_cases import (
    SHAPES,
    Chain,
    chain,
    edge_cases,
    oracle_block,
    oracle_next,
    oracle_token,
    pointed_cases,
    rho_at,
)

RULES = [block_verify, token_verify]


def lists(case: Chain, rule=block_verify) -> tuple[list[int], list[int]]:
    kept, following = rule(*case)
    return kept.tolist(), following.tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_the_definitions_over_odd_shapes(shape: tuple[int, int, int]) -> None:
    for seed in range(1 if shape[2] > 10_000 else 20):
        case = chain(*shape, seed=seed)
        kept, following = lists(case)
        assert kept == [oracle_block(case, b) for b in range(shape[0])]
        assert following == [oracle_next(case, b, k, rho_at(case, b, k)) for b, k in enumerate(kept)]
        kept, following = lists(case, token_verify)
        assert kept == [oracle_token(case, b) for b in range(shape[0])]
        assert following == [oracle_next(case, b, k, 1.0) for b, k in enumerate(kept)]


@pytest.mark.parametrize("name", pointed_cases())
def test_pointed_cases(name: str) -> None:
    case, (kept, following) = pointed_cases()[name]
    assert lists(case) == ([kept], [following])


def test_every_length_is_kept_somewhere() -> None:
    """The cases above would show little if they all stopped at once."""
    for rule in RULES:
        kept = {k for seed in range(60) for k in lists(chain(5, 5, 130, seed=seed), rule)[0]}
        assert kept == set(range(6))


def test_one_drafted_token_makes_the_rules_equal() -> None:
    for seed in range(30):
        case = chain(6, 1, 9, seed=seed)
        assert lists(case) == lists(case, token_verify)


@pytest.mark.parametrize("rule", RULES)
def test_one_hot_target_keeps_the_longest_match(rule) -> None:
    for name in ("p one-hot", "both one-hot"):
        assert lists(edge_cases()[name], rule) == ([2, 2, 0, 0], [0, 1, 3, 5])


@pytest.mark.parametrize("rule", RULES)
def test_impossible_token_is_never_kept_nor_drawn(rule) -> None:
    case = edge_cases()["p(x) = 0 and u = 0"]
    kept, following = lists(case, rule)
    assert kept == [0, 0, 0, 0]
    assert all(case[0][b, 0, y] > 0 for b, y in enumerate(following))


@pytest.mark.parametrize("rule", RULES)
def test_equal_laws_are_kept_whole(rule) -> None:
    cases = edge_cases()
    assert lists(cases["p = q"], rule)[0] == [3, 2, 1, 0]
    assert lists(cases["u = 0"], rule)[0] == [3, 2, 1, 0]


@pytest.mark.parametrize("rule", RULES)
def test_empty_residual_falls_back_to_the_target(rule) -> None:
    case = edge_cases()["p = q and u = 1"]
    kept, following = lists(case, rule)
    assert kept == [0, 0, 0, 0]
    assert following == [int((case[5][b] / case[0][b, 0]).argmin()) for b in range(4)]


@pytest.mark.parametrize("rule", RULES)
def test_equal_quotients_give_the_lowest_id_and_nothing_gives_minus_one(rule) -> None:
    cases = edge_cases()
    assert lists(cases["equal quotients"], rule)[1][3] == 0
    for name in ("nothing to draw", "all zero"):
        assert lists(cases[name], rule) == ([0, 0, 0, 0], [-1, -1, -1, -1])


def test_strided_rows_are_taken_as_they_are() -> None:
    P, Q, *rest = chain(3, 4, 33, seed=2)
    wide = torch.full((3, 9, 40), 0.5)
    wide[:, 2:7, :33] = P
    for rule in RULES:
        expected = rule(P, Q, *rest)
        assert all(map(torch.equal, rule(wide[:, 2:7, :33], Q, *rest), expected))


def test_refusals() -> None:
    P, Q, x, n, u, E = chain(2, 3, 5)
    with pytest.raises(ValueError, match=r"P must be \[2, 4, 5\]"):
        block_verify(P[:, :3], Q, x, n, u, E)
    with pytest.raises(ValueError, match=r"x must be \[2, 3\]"):
        token_verify(P, Q, x[:, :2], n, u, E)
    with pytest.raises(ValueError, match=r"need u \(2, 3\) and E \(2, 5\)"):
        block_verify(P, Q, x, n, u, E[:, :4])
    with pytest.raises(ValueError, match="P and Q must be float32"):
        block_verify(P.double(), Q, x, n, u, E)
    with pytest.raises(ValueError, match="x and n must be int64"):
        token_verify(P, Q, x, n.int(), u, E)
    with pytest.raises(ValueError, match="E must be float32"):
        token_verify(P, Q, x, n, u, E.double())
    with pytest.raises(ValueError, match="not a valid Backend"):
        block_verify(P, Q, x, n, u, E, backend="cuda")
    with pytest.raises(KernelUnavailable, match="use chain_verify"):
        block_verify(P, Q, x, n, u, E, backend="flashinfer")
    with pytest.raises(KernelUnavailable, match="need a CUDA device"):
        chain_verify(P, Q, x, n)


def test_triton_is_refused_on_a_cpu_outside_its_interpreter() -> None:
    pytest.importorskip("triton", reason="needs the package triton (extra dev or cuda)")
    with pytest.raises(KernelUnavailable, match="Triton kernels need a CUDA device"):
        block_verify(*chain(2, 3, 5), backend="triton")


def test_documented_examples_run() -> None:
    results = doctest.testmod(api)
    assert results.attempted >= 6
    assert results.failed == 0
