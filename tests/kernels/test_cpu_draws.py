"""Noise, the race and the largest logit in C against double precision and NumPy; also as built for an old processor."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ssd_kernels.cpu import CpuKernels
from ssd_kernels.philox import noise_words, words_to_uniform
from support.compiled import compiled


@pytest.fixture(params=["this processor", "an old one"])
def kernels(request: pytest.FixtureRequest, older_processor: CpuKernels) -> CpuKernels:
    return compiled() if request.param == "this processor" else older_processor


@pytest.mark.parametrize(
    ("seed", "position", "vocabulary", "domain", "round_word"),
    [(0, 0, 49152, 0, 0), (-5, 2**32 - 1, 1001, 3, 7), (2**63 + 12345, 77, 3, 1, 0), (9, 1, 70001, 2, 2**32 - 1)],
)
def test_noise_is_the_logarithm_of_the_published_words(
    kernels: CpuKernels, seed: int, position: int, vocabulary: int, domain: int, round_word: int
) -> None:
    words = noise_words([seed], [position], vocabulary, domain=domain, rounds=[round_word])[0]
    exact = -torch.log1p(-words_to_uniform(words).double())
    noise = kernels.exponential(seed, position, vocabulary, domain, round_word)
    assert noise.dtype == torch.float32
    torch.testing.assert_close(noise.double(), exact, rtol=5e-7, atol=0)


def test_noise_keeps_its_precision_at_both_ends(kernels: CpuKernels) -> None:
    """Near 0 E is about u, where 1 - u has lost most of it, or is 1; u itself stays below 1.

    Positions 119 and 287 are the first whose rows hold the largest uniform and one that 1 - u loses whole.
    """
    positions = (*range(20), 119, 287)
    noise = torch.cat([kernels.exponential(3, p, 60_000, 0) for p in positions]).double()
    words = noise_words([3] * len(positions), positions, 60_000).flatten()
    exact = -torch.log1p(-words_to_uniform(words).double())
    assert float(exact.min()) < 2**-25
    assert float(exact.max()) == pytest.approx(24 * math.log(2), rel=1e-9)
    torch.testing.assert_close(noise, exact, rtol=5e-7, atol=0)


def test_noise_refuses_what_the_counter_cannot_hold(kernels: CpuKernels) -> None:
    with pytest.raises(ValueError, match="position must be in"):
        kernels.exponential(0, 2**32, 5, 0)
    with pytest.raises(ValueError, match="vocabulary must be in"):
        kernels.exponential(0, 0, 0, 0)


def test_the_race_and_the_largest_are_numpys(kernels: CpuKernels) -> None:
    generator = torch.Generator().manual_seed(4)
    for n in [*range(1, 40), 49152]:
        row = torch.randint(0, 4, (n,), generator=generator).float()
        noise = torch.rand(n, generator=generator) + 0.25
        assert kernels.largest(row) == int(row.numpy().argmax())
        quotients = (noise / row).numpy()
        best = int(quotients.argmin())
        assert kernels.race(noise, row) == (best if np.isfinite(quotients[best]) else -1)
        assert kernels.race(torch.ones(n), row.clamp(min=1)) == int(row.clamp(min=1).numpy().argmax())


@pytest.mark.parametrize("place", [0, 15, 16, 33])
def test_rows_without_a_token(kernels: CpuKernels, place: int) -> None:
    row, ones = torch.rand(34) + 1, torch.ones(34)
    row[place] = math.nan
    assert kernels.largest(row) == kernels.race(ones, row) == -1
    row[place] = math.inf
    assert kernels.largest(row) == -1
    assert kernels.largest(torch.full((34,), -math.inf)) == -1
    assert kernels.race(ones, torch.zeros(34)) == -1
    row = torch.full((34,), -math.inf)
    row[place] = -3e38
    assert kernels.largest(row) == place
