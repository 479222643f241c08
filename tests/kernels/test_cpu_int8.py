"""Layers with int8 weights against their reference in torch, and rows against the same rows alone."""

from __future__ import annotations

import pytest
import torch
from ssd_kernels.cpu import CpuKernels, Int8Layer, int8_linear_reference
from ssd_kernels.cpu.int8 import MOST_INPUTS
from support.compiled import compiled

from ssd_cluster.model.compiled_attention import agrees
from ssd_cluster.model.row_ops import CompiledRowOps, EagerRowOps, agree

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SIZES = pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (31, 7), (33, 64), (96, 130), (64, 577)])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@DTYPES
@SIZES
@pytest.mark.parametrize("rows", [1, 2, 7, 15, 40])
def test_equals_the_reference(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    x, weight, bias = random(rows, inputs).to(dtype), random(outputs, inputs).to(dtype), random(outputs)
    for given in (bias, None):
        y = Int8Layer(compiled(), weight, given)(x)
        assert y.dtype == dtype
        tolerance = 1e-6 if dtype == torch.float32 else 2**-8
        torch.testing.assert_close(y, int8_linear_reference(x, weight, given), rtol=tolerance, atol=tolerance * 4)


@SIZES
def test_is_near_the_layer_that_was_rounded(outputs: int, inputs: int) -> None:
    x, weight = random(9, inputs), random(outputs, inputs)
    exact = x @ weight.T
    error = (Int8Layer(compiled(), weight)(x) - exact).norm() / exact.norm()
    assert error < 0.02


@DTYPES
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    layer, x = Int8Layer(compiled(), random(75, 130), random(75)), random(23, 130).to(dtype)
    whole = layer(x)
    for start in range(23):
        for stop in (start + 1, start + 2, start + 5, 23):
            assert torch.equal(layer(x[start:stop]), whole[start:stop])


def test_rows_of_zeros_and_of_very_different_sizes() -> None:
    x, weight, bias = random(4, 64), random(40, 64), random(40)
    x[1] = 0
    x[2] *= 1e30
    x[3] *= 1e-30
    y = Int8Layer(compiled(), weight, bias)(x)
    torch.testing.assert_close(y, int8_linear_reference(x, weight, bias), rtol=1e-5, atol=1e-5)
    assert torch.equal(y[1], bias)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_seen(bad: float) -> None:
    x = random(2, 64)
    x[0, 5] = bad
    y = Int8Layer(compiled(), random(40, 64))(x)
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


def test_the_largest_sums_fit() -> None:
    x, weight = torch.ones(1, MOST_INPUTS), torch.ones(2, MOST_INPUTS)
    weight[1] = -1
    y = Int8Layer(compiled(), weight)(x)
    torch.testing.assert_close(y, torch.tensor([[1.0, -1.0]]) * MOST_INPUTS)
    with pytest.raises(ValueError, match="at most 65536 inputs, not 65537"):
        Int8Layer(compiled(), torch.ones(1, MOST_INPUTS + 1))


@DTYPES
def test_other_instructions_give_the_same_bits(older_processor: CpuKernels, dtype: torch.dtype) -> None:
    x, weight, bias = random(7, 130).to(dtype), random(75, 130), random(75)
    ours, theirs = (Int8Layer(kernels, weight, bias) for kernels in (compiled(), older_processor))
    assert torch.equal(ours(x), theirs(x))


@DTYPES
def test_the_kernels_do_not_need_new_instructions(older_processor: CpuKernels, dtype: torch.dtype) -> None:
    assert agree(CompiledRowOps(older_processor), EagerRowOps(), dtype)
    assert agrees(older_processor, dtype)
