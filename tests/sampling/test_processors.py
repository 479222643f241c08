"""``process`` against the slow oracle, the full-sort version, and the edge cases of verification.md section 4."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import sampling_oracle as oracle

from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.sampling.truncation import Truncation, truncated_law, truncated_law_on_host

# Few distinct logits: almost every cut falls into a tie, and float64 sums of the weights are exact.
TIED_ROWS = st.lists(st.integers(-4, 4).map(lambda n: n / 2), min_size=1, max_size=12)
TEMPERATURES = st.sampled_from([0.0, 0.5, 0.7, 1.0, 2.0])
TOP_PS = st.one_of(st.just(1.0), st.integers(1, 20).map(lambda n: n / 20), st.floats(1e-6, 1.0))
MIN_PS = st.one_of(st.just(0.0), st.sampled_from([0.1, math.exp(-1), 0.5, 1.0]))


def support(law: torch.Tensor) -> list[int]:
    return law.nonzero().flatten().tolist()


@settings(max_examples=400, deadline=None)
@given(TIED_ROWS, TEMPERATURES, st.integers(0, 14), TOP_PS, MIN_PS, st.sets(st.integers(0, 11)), st.integers(1, 14))
def test_ties_equal_the_oracle(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float, banned: set[int], valid: int
) -> None:
    banned.discard(0)
    params = RowParams(temperature, top_k, top_p, min_p, tuple(banned))
    logits = torch.tensor(row)
    law = process(logits.unsqueeze(0), [params], valid)[0]
    assert support(law) == oracle.kept_ids(logits, params, valid)
    np.testing.assert_allclose(law.numpy(), oracle.law(logits, params, valid), rtol=2e-6)


TRUNCATIONS = [
    Truncation(top_k=50),
    Truncation(top_k=1),
    Truncation(top_k=700),
    Truncation(top_p=0.9),
    Truncation(top_p=0.05),
    Truncation(top_p=0.9999),
    Truncation(top_p=1 - 1e-12),
    Truncation(min_p=0.02),
    Truncation(top_k=200, min_p=0.001, top_p=0.8),
    Truncation(min_p=0.001, top_p=0.8),
    Truncation(top_k=10**6, top_p=0.5),
]


@pytest.mark.parametrize("truncation", TRUNCATIONS)
@pytest.mark.parametrize("vocabulary", [3, 63, 64, 1000, 4099])
def test_partial_selection_equals_full_sort(truncation: Truncation, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    for scale, decimals in ((0.3, None), (3.0, None), (3.0, 1), (1.0, 0)):
        logits = torch.randn(4, vocabulary, generator=generator) * scale
        if decimals is not None:
            logits = logits.round(decimals=decimals)
        logits[3, :: 3 if vocabulary > 3 else 2] = float("-inf")
        for temperature in (0.7, 1.0):
            wanted = truncated_law(logits, temperature, truncation)
            for row, law in zip(logits, wanted, strict=True):
                out = np.empty(vocabulary, dtype=np.float32)
                truncated_law_on_host(row.numpy(), temperature, truncation, out)
                assert np.array_equal(np.flatnonzero(out), np.flatnonzero(law.numpy()))
                np.testing.assert_allclose(out, law.numpy(), rtol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Bit for bit: the number of rows of a forward must not change what is drawn from equal logits."""
    logits = torch.randn(6, 3001, generator=torch.Generator().manual_seed(0)) * 3
    params = [
        RowParams(0.7),
        RowParams(0.7),
        RowParams(1.0),
        RowParams(0.0),
        RowParams(0.7, top_k=20, top_p=0.9),
        RowParams(0.7, banned_ids=(5,)),
    ]
    together = process(logits, params, 3000)
    for i, row_params in enumerate(params):
        assert torch.equal(process(logits[i : i + 1], [row_params], 3000)[0], together[i])
    swapped = process(logits.flip(0), params[::-1], 3000).flip(0)
    assert torch.equal(swapped, together)


def test_thread_count_does_not_change_the_law() -> None:
    logits = torch.randn(1, 49152, generator=torch.Generator().manual_seed(1)) * 3
    params = [RowParams(0.7), RowParams(1.0), RowParams(0.7, top_k=20), RowParams(1.0, top_p=0.9)]
    one = [process(logits, [p]) for p in params]
    torch.set_num_threads(2)
    try:
        two = [process(logits, [p]) for p in params]
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_input_is_not_changed_and_dtype_is_float32() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = logits.clone()
    law = process(logits, [RowParams(0.5, banned_ids=(1,)), RowParams(0.0), RowParams(1.0, top_p=0.5)], 39)
    assert torch.equal(logits, before)
    assert law.dtype == torch.float32
    exact = ((logits[0, :39].double() - logits[0, 2:39].double().max()) / 0.5).exp()
    exact[1] = 0
    torch.testing.assert_close(law[0, :39].double(), exact / exact.sum(), rtol=1e-5, atol=0)
    floats = torch.randn(2, 8)
    before = floats.clone()
    process(floats, [RowParams(0.0, banned_ids=(1,)), RowParams(0.5, top_k=2)], 7)
    assert torch.equal(floats, before)


def test_padding_and_banned_ids_have_no_mass() -> None:
    logits = torch.zeros(3, 10)
    logits[:, 9] = 50
    logits[:, 2] = 40
    params = [RowParams(t, banned_ids=(2, 10_000)) for t in (0.0, 1.0, 100.0)]
    law = process(logits, params, valid_vocab=8)
    assert (law[:, [2, 8, 9]] == 0).all()
    assert law[0].tolist() == [1.0] + [0.0] * 9
    assert torch.allclose(law.sum(dim=1), torch.ones(3))


def test_greedy_takes_the_lowest_of_equal_ids_and_ignores_truncation() -> None:
    law = process(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), [RowParams(0.0, top_k=2, top_p=0.1, min_p=0.5)])
    assert law.tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert RowParams(0.0).greedy
    assert not RowParams(1e-9).greedy


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-6])
@pytest.mark.parametrize("top_k", [0, 3])
def test_tiny_temperatures_do_not_overflow(temperature: float, top_k: int) -> None:
    law = process(torch.tensor([[300.0, -300.0, 300.0, 299.0]]), [RowParams(temperature, top_k)])
    assert law.tolist() == [[0.5, 0.0, 0.5, 0.0]]


@pytest.mark.parametrize("top_k", [0, 2])
def test_low_temperatures_keep_precision(top_k: int) -> None:
    logits = torch.tensor([[20.0, 20.0 - 2**-7, 3.0]])
    second = math.exp(-(2**-7) / 0.003)
    law = process(logits, [RowParams(0.003, top_k)])[0]
    assert law[1].item() == pytest.approx(second / (1 + second), rel=1e-6)


def test_top_p_counts_what_top_k_left() -> None:
    """p = .4 .3 .2 .1: after top_k 2 the first id holds 4/7, which is enough for top_p .5 but not for .6."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert support(process(logits, [RowParams(1.0, top_k=2, top_p=0.5)])[0]) == [0]
    assert support(process(logits, [RowParams(1.0, top_k=2, top_p=0.6)])[0]) == [0, 1]
    assert support(process(logits, [RowParams(1.0, top_p=0.5)])[0]) == [0, 1]


def test_temperature_comes_before_top_p() -> None:
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log()
    assert support(process(logits, [RowParams(1.0, top_p=0.6 - 1e-6)])[0]) == [0]
    assert support(process(logits, [RowParams(2.0, top_p=0.6 - 1e-6)])[0]) == [0, 1]


def test_equal_ids_are_cut_at_the_highest() -> None:
    flat = torch.zeros(1, 10)
    assert support(process(flat, [RowParams(1.0, top_k=3)])[0]) == [0, 1, 2]
    assert support(process(flat, [RowParams(1.0, top_p=0.3)])[0]) == [0, 1, 2]
    assert support(process(flat, [RowParams(1.0, top_p=0.31)])[0]) == [0, 1, 2, 3]
    assert support(process(flat, [RowParams(1.0, min_p=1.0)])[0]) == list(range(10))


@pytest.mark.parametrize("params", [RowParams(0.0), RowParams(1.0), RowParams(0.5), RowParams(1.0, top_k=2)])
@pytest.mark.parametrize("row", [[0.0, math.nan, 0.0], [-math.inf] * 3, [0.0, math.inf, 0.0]])
def test_unusable_logits_become_nan(params: RowParams, row: list[float]) -> None:
    assert process(torch.tensor([row]), [params]).isnan().any()


def test_shapes() -> None:
    assert process(torch.empty(0, 5), []).shape == (0, 5)
    with pytest.raises(ValueError, match="2 parameter sets for 1 rows"):
        process(torch.zeros(1, 5), [RowParams()] * 2)


def test_row_params_of_a_request() -> None:
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=40, min_p=0.05)
    assert RowParams.of(params, (2,)) == RowParams(0.7, 40, 0.9, 0.05, (2,))
    assert RowParams.of(params).truncation == Truncation(40, 0.05, 0.9)
    assert RowParams(0.7).truncation is None
