"""Fused coupled sampling, torch reference: the same tokens as processing, noise rows and the race taken one by one."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.coupled import api, coupled_sample
from ssd_kernels.philox import exponential_noise
from ssd_kernels.truncation import Cut, renormalise, support_cut
from ssd_kernels.truncation import api as truncation_api

from ssd_cluster.sampling import coupled, processors
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams

ROWS = [
    RowParams(),
    RowParams(temperature=0.7),
    RowParams(temperature=0.0),
    RowParams(temperature=0.05, top_p=0.9),
    RowParams(top_k=5),
    RowParams(temperature=1.3, top_k=50, top_p=0.8),
    RowParams(temperature=0.0, top_k=3),
    RowParams(top_p=0.3),
    RowParams(min_p=0.2),
    RowParams(temperature=1.5, top_k=40, min_p=0.05, top_p=0.95),
]


def logits_of(V: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(len(ROWS), V, generator=torch.Generator().manual_seed(seed)) * 3


def cut_of(logits: torch.Tensor) -> Cut:
    columns = zip(*((r.temperature, r.top_k, r.min_p, r.top_p) for r in ROWS), strict=True)
    return support_cut(logits, *columns)


@pytest.mark.parametrize("V", [1, 3, 130, 1023, 49152])
def test_equals_processing_then_the_race(V: int) -> None:
    temperature = [row.temperature for row in ROWS]
    for seed in range(2 if V > 10_000 else 20):
        logits = logits_of(V, seed)
        seeds, positions = [seed - 3] * len(ROWS), [2**32 - 1 - i for i in range(len(ROWS))]
        source = NoiseSource(seed - 3, V)
        probs = processors.process(logits, ROWS)
        noise = [None if row.greedy else source.row(p) for row, p in zip(ROWS, positions, strict=True)]
        wanted = coupled.coupled_sample(probs, noise)
        assert torch.equal(coupled_sample(logits, temperature, seeds, positions, cut=cut_of(logits)), wanted)


@pytest.mark.parametrize("V", [1, 3, 130, 1023])
def test_cut_is_the_support_of_the_processed_law_also_at_ties(V: int) -> None:
    for rounded in (False, True):
        logits = logits_of(V)
        logits = logits.round() if rounded else logits
        cut = cut_of(logits)
        tied = (logits == cut.value[:, None]) & (torch.arange(V) <= cut.last[:, None])
        kept = (logits > cut.value[:, None]) | tied
        law = processors.process(logits, ROWS)
        weights = torch.softmax(logits / torch.tensor([r.temperature or 1 for r in ROWS])[:, None], -1)
        for row, params in enumerate(ROWS):
            if not params.greedy:
                # An id whose weight vanishes in float32 may lie on either side.
                assert torch.equal(kept[row] & (weights[row] > 0), law[row] > 0)


def test_rounds_and_domains_are_other_draws() -> None:
    logits = torch.zeros(1, 5000)
    draws = {
        int(coupled_sample(logits, [1.0], [4], [9], domain=domain, rounds=[use]))
        for domain in (0, 1)
        for use in (0, 1, 2)
    }
    assert len(draws) == 6
    noise = exponential_noise([4], [9], 5000, domain=1, rounds=[2])
    assert coupled_sample(logits, [1.0], [4], [9], domain=1, rounds=[2]) == noise.argmin()


def test_banned_ids_padding_and_dead_rows() -> None:
    logits = logits_of(40)[:4]
    logits[0, :39] = -math.inf
    logits[1, 7] = math.nan
    logits[2, 3] = math.inf
    logits[3] = -math.inf
    args = ([1.0, 1.0, 0.0, 1.0], [1] * 4, [2] * 4)
    assert coupled_sample(logits, *args).tolist() == [39, -1, -1, -1]
    assert coupled_sample(logits[:1, :39], [1.0], [1], [2]).tolist() == [-1]


def test_equal_logits_in_a_greedy_row_give_the_lowest_id() -> None:
    assert coupled_sample(torch.zeros(1, 9), [0.0], [0], [0]).tolist() == [0]


def test_bfloat16_logits_are_scored_in_float32() -> None:
    logits = logits_of(300).bfloat16()
    args = ([1.0] * len(ROWS), [5] * len(ROWS), list(range(len(ROWS))))
    assert torch.equal(coupled_sample(logits, *args), coupled_sample(logits.float(), *args))


@pytest.mark.parametrize("V", [2, 130, 1023])
def test_renormalise_equals_the_processed_law(V: int) -> None:
    rows = [RowParams(top_k=5), RowParams(top_p=0.7), RowParams(top_k=9, top_p=0.5), RowParams()]
    logits = logits_of(V)[: len(rows)]
    law = renormalise(torch.softmax(logits, -1), [r.top_k for r in rows], [r.top_p for r in rows])
    torch.testing.assert_close(law, processors.process(logits, rows), rtol=2e-6, atol=0)


def test_refusals() -> None:
    logits = torch.zeros(2, 4)
    with pytest.raises(ValueError, match="1 values of temperature for 2 rows"):
        coupled_sample(logits, [1.0], [0, 0], [0, 0])
    with pytest.raises(ValueError, match="1 values of seeds"):
        coupled_sample(logits, [1.0, 1.0], [0], [0])
    with pytest.raises(ValueError, match="must not be negative"):
        coupled_sample(logits, [1.0, -1.0], [0, 0], [0, 0])
    with pytest.raises(ValueError, match="position must be in"):
        coupled_sample(logits, [1.0, 1.0], [0, 0], [0, -1])
    with pytest.raises(ValueError, match="must be floating"):
        coupled_sample(logits.long(), [1.0, 1.0], [0, 0], [0, 0])
    with pytest.raises(ValueError, match="cut must hold 2 rows"):
        coupled_sample(logits, [1.0, 1.0], [0, 0], [0, 0], cut=Cut(torch.zeros(1), torch.zeros(1)))
    with pytest.raises(KernelUnavailable, match="noise of its own"):
        coupled_sample(logits, [1.0, 1.0], [0, 0], [0, 0], backend="flashinfer")
    with pytest.raises(ValueError, match=r"top_p must be in \(0, 1\]"):
        support_cut(logits, [1.0, 1.0], [0, 0], [0.0, 0.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="top_k must not be negative"):
        renormalise(logits, [-1, 0], [1.0, 1.0])
    with pytest.raises(KernelUnavailable, match="no Triton kernel"):
        renormalise(logits, [0, 0], [1.0, 1.0], backend="triton")
    with pytest.raises(KernelUnavailable, match="need a CUDA device"):
        renormalise(logits, [0, 0], [1.0, 1.0], backend="flashinfer")
    assert coupled_sample(logits[:0], [], [], []).tolist() == []


@pytest.mark.parametrize("module", [api, truncation_api])
def test_documented_examples_run(module) -> None:
    results = doctest.testmod(module)
    assert results.attempted >= 3
    assert results.failed == 0
