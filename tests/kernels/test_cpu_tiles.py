"""Layers in bfloat16 by AMX tiles against sums in double precision, and rows against the same rows alone."""

from __future__ import annotations

import pytest
import torch
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.cpu import CpuKernels, Int8Layer, TiledLayer
from support.compiled import compiled, torch_threads

SIZES = pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (31, 7), (33, 64), (96, 130), (64, 577)])


def tiled() -> CpuKernels:
    kernels = compiled()
    if not kernels.tiles:
        pytest.skip("this processor has no AMX tiles")
    return kernels


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16()


@SIZES
@pytest.mark.parametrize("rows", [0, 1, 2, 15, 16, 17, 32, 33, 70])
def test_is_the_product_rounded_once(rows: int, outputs: int, inputs: int) -> None:
    x, weight, bias = random(rows, inputs), random(outputs, inputs), random(outputs)
    for given in (bias, None):
        y = TiledLayer(tiled(), weight, given)(x)
        assert y.dtype == torch.bfloat16
        exact = x.double() @ weight.double().T + (0 if given is None else given.double())
        size = x.double().abs() @ weight.double().abs().T
        assert bool(((y.double() - exact).abs() <= exact.abs() * 2**-8 + size * 1e-6 + 1e-30).all())


@SIZES
@pytest.mark.parametrize("rows", [1, 17, 40])
def test_sums_need_not_be_rounded(rows: int, outputs: int, inputs: int) -> None:
    x, weight, bias = random(rows, inputs), random(outputs, inputs), random(outputs)
    layer = TiledLayer(tiled(), weight, bias)
    y = layer(x, torch.float32)
    assert y.dtype == torch.float32
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    exact = x.double() @ weight.double().T + bias.double()
    assert bool(((y.double() - exact).abs() <= size * 1e-6 + 1e-30).all())
    assert torch.equal(y.bfloat16(), layer(x))


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    layer, x = TiledLayer(tiled(), random(75, 130), random(75)), random(45, 130)
    whole = layer(x)
    for start in range(0, 45, 4):
        for stop in (start + 1, start + 2, start + 17, 45):
            assert torch.equal(layer(x[start:stop]), whole[start:stop])


def test_rows_that_do_not_lie_together() -> None:
    layer, x = TiledLayer(tiled(), random(40, 64)), random(64, 9)
    assert torch.equal(layer(x.T), layer(x.T.contiguous()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_seen(bad: float) -> None:
    x = random(2, 64)
    x[0, 5] = bad
    y = TiledLayer(tiled(), random(40, 64))(x)
    assert not bool(y[0].isfinite().any())
    assert bool(y[1].isfinite().all())


def test_refusals(older_processor: CpuKernels) -> None:
    assert not older_processor.tiles
    with pytest.raises(KernelUnavailable, match="no AMX tiles"):
        TiledLayer(older_processor, random(32, 32))
    with pytest.raises(ValueError, match=r"bfloat16, not torch\.float32"):
        TiledLayer(tiled(), random(32, 32).float())


@pytest.mark.parametrize("outputs", [20, 33, 300])
def test_threads_share_the_outputs(outputs: int) -> None:
    weight, x = random(outputs, 96), random(40, 96)
    layers = [TiledLayer(tiled(), weight), Int8Layer(tiled(), weight)]
    alone = [layer(x) for layer in layers] + [layer(x[:1]) for layer in layers]
    with torch_threads(3):
        together = [layer(x) for layer in layers] + [layer(x[:1]) for layer in layers]
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)
