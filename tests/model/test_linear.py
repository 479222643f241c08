"""The packed linear backend against the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ssd_cluster.model.linear import EagerLinear, Linear, PackedLinear, linear_backend

CPU = torch.device("cpu")
SIZES = [(96, 64), (960, 576), (64, 1536)]


def case(out: int, width: int, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(out + rows)
    shapes = ((rows, width), (out, width), (out,))
    x, weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return x, weight, bias


needs_packing = pytest.mark.skipif(
    linear_backend(torch.float32, CPU) is not PackedLinear, reason="this build of torch cannot prepack weights"
)


@pytest.mark.parametrize("backend", [EagerLinear, pytest.param(PackedLinear, marks=needs_packing)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backends_multiply(backend: type[Linear], size: tuple[int, int], rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = case(*size, rows, dtype)
    exact = x.double() @ weight.double().T
    tolerance = 1e-3 if dtype == torch.float32 else 0.6
    with torch.inference_mode():
        for given, expected in ((bias, exact + bias), (None, exact)):
            y = backend(weight, given)(x)
            assert y.dtype == dtype
            torch.testing.assert_close(y.double(), expected, rtol=0, atol=tolerance)


@needs_packing
@pytest.mark.parametrize("size", SIZES)
def test_packed_float32_rows_do_not_depend_on_their_neighbours(size: tuple[int, int]) -> None:
    x, weight, bias = case(*size, 48, torch.float32)
    layer = PackedLinear(weight, bias)
    with torch.inference_mode():
        whole = layer(x)
        for rows in (1, 2, 3, 5, 8, 17):
            assert torch.equal(layer(x[:rows]), whole[:rows])


def test_packed_bfloat16_is_only_chosen_with_equal_bits() -> None:
    if linear_backend(torch.bfloat16, CPU) is not PackedLinear:
        pytest.skip("this CPU runs bfloat16 with the plain backend")
    x, weight, bias = case(192, 96, 8, torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(PackedLinear(weight, bias)(x), F.linear(x, weight, bias))


def test_a_kernel_that_computes_otherwise_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedLinear, "__call__", lambda self, x: torch.zeros(x.shape[0], 192, dtype=x.dtype))
    assert linear_backend(torch.float32, CPU) is EagerLinear
    assert linear_backend(torch.bfloat16, CPU) is EagerLinear


def test_a_kernel_that_does_not_run_here_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("bf16 path needs the cpu support avx_ne_convert or avx512bw")

    monkeypatch.setattr(PackedLinear, "__call__", refuse)
    assert linear_backend(torch.bfloat16, CPU) is EagerLinear


def test_other_devices_use_the_plain_backend() -> None:
    assert linear_backend(torch.bfloat16, torch.device("cuda")) is EagerLinear
