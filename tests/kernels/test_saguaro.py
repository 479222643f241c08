"""SAGUARO sampling, torch reference: the formula, its limits, ties, and the law of the draws."""

from __future__ import annotations

import doctest

import pytest
import torch
from scipy.stats import chisquare
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.saguaro import api, saguaro_sample
from support.kernel_cases import exponential, laws


def rows(V: int, R: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    return laws(R, V, gen=gen), exponential(R, V, gen=gen)


@pytest.mark.parametrize(("F", "C"), [(1, 0.5), (4, 0.0), (4, 0.3), (16, 0.9), (1000, 0.5)])
@pytest.mark.parametrize("V", [1, 7, 1023, 49152])
def test_equals_the_definition(V: int, F: int, C: float) -> None:
    q, E = rows(V)
    sigma, drawn = saguaro_sample(q, F, C, E)
    for law, noise, actual, token in zip(q.double(), E.double(), sigma, drawn, strict=True):
        best = sorted(range(V), key=lambda v, law=law: (-float(law[v]), v))[:F]
        weights = law.clone()
        weights[best] *= C
        weights = weights if weights.sum() > 0 else law
        torch.testing.assert_close(actual.double(), weights / weights.sum(), rtol=2e-6, atol=1e-9)
        assert int(token) == int((noise / weights).argmin())


def test_c_of_one_or_no_tokens_leave_the_law() -> None:
    q, E = rows(1023)
    for F, C in ((8, 1.0), (0, 0.25)):
        sigma, drawn = saguaro_sample(q, F, C, E)
        torch.testing.assert_close(sigma, q, rtol=1e-6, atol=0)
        assert torch.equal(drawn, (E / q).argmin(-1))


def test_of_equal_probabilities_the_lowest_ids_are_lowered() -> None:
    q = torch.tensor([[0.1, 0.2, 0.2, 0.2, 0.3]])
    sigma, _ = saguaro_sample(q, 3, 0.0, torch.ones(1, 5))
    assert sigma[0].nonzero().flatten().tolist() == [0, 3]


def test_rows_without_mass_elsewhere_keep_their_law_at_c_of_zero() -> None:
    q = torch.tensor([[0.25, 0.0, 0.75], [0.0, 0.0, 0.0]])
    sigma, drawn = saguaro_sample(q, 2, 0.0, torch.ones(2, 3))
    assert torch.equal(sigma[0], q[0])
    assert drawn.tolist() == [2, -1]


def test_draws_follow_sigma() -> None:
    n = 20_000
    q = torch.tensor([[0.5, 0.2, 0.15, 0.1, 0.05]]).expand(n, -1)
    E = exponential(n, 5, gen=torch.Generator().manual_seed(3))
    sigma, drawn = saguaro_sample(q, 2, 0.4, E)
    observed = torch.bincount(drawn, minlength=5)
    assert chisquare(observed.numpy(), n * sigma[0].double().numpy() / float(sigma[0].sum()))[1] > 1e-3


def test_refusals() -> None:
    q, E = rows(5)
    for arguments in ((q, -1, 0.5, E), (q, 2, 1.5, E), (q, 2, float("nan"), E)):
        with pytest.raises(ValueError, match="must be in"):
            saguaro_sample(*arguments)
    with pytest.raises(ValueError, match="need q and E float32"):
        saguaro_sample(q, 2, 0.5, E[:, :4])
    with pytest.raises(ValueError, match="need q and E float32"):
        saguaro_sample(q.double(), 2, 0.5, E)
    with pytest.raises(KernelUnavailable, match="no SAGUARO"):
        saguaro_sample(q, 2, 0.5, E, backend="flashinfer")


def test_documented_examples_run() -> None:
    results = doctest.testmod(api)
    assert (results.attempted, results.failed) == (3, 0)
