"""The kernels' references and the rules of ssd_cluster.verify are two texts of one rule: same outcome on every case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ssd_kernels.verification import block_verify, token_verify
from support.kernel_cases import Chain, chain, chains

from ssd_cluster.errors import NumericalError
from ssd_cluster.verify.block import block_core
from ssd_cluster.verify.tokenwise import tokenwise

Rule = Callable[..., tuple[torch.Tensor, torch.Tensor]]
PAIRS = pytest.mark.parametrize(("kernel", "rule"), [(block_verify, block_core), (token_verify, tokenwise)])
DEAD = ("nothing to draw", "all zero")


def padded(case: Chain) -> Chain:
    """The case with padding that the rules of ssd_cluster, which look at padding, can read."""
    P, Q, x, n, u, E = case
    return P.nan_to_num(0.5), Q.nan_to_num(0.5), x.clamp(min=0), n, u.nan_to_num(0.5), E


@PAIRS
def test_same_outcomes(kernel: Rule, rule: Rule) -> None:
    for name, case in chains():
        if name not in DEAD:
            wanted = [t.tolist() for t in rule(*padded(case))]
            assert [t.tolist() for t in kernel(*case)] == wanted, name


@PAIRS
def test_same_outcomes_at_random(kernel: Rule, rule: Rule) -> None:
    for seed in range(100):
        case = chain(8, 6, 17, seed=seed)
        wanted = [t.tolist() for t in rule(*padded(case))]
        assert [t.tolist() for t in kernel(*case)] == wanted


@PAIRS
def test_rows_that_leave_nothing_are_an_error_there_and_minus_one_here(kernel: Rule, rule: Rule) -> None:
    for name, case in chains():
        if name in DEAD:
            assert kernel(*case)[1].tolist() == [-1] * 4
            with pytest.raises(NumericalError):
                rule(*case)
