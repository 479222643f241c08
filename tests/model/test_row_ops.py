"""The compiled operations between linear layers against the eager ones, over odd shapes."""

from __future__ import annotations

import pytest
import torch
from support.compiled import compiled

from ssd_cluster.model.norm import RMSNorm
from ssd_cluster.model.row_ops import CompiledRowOps, EagerRowOps, RowOps, agree

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
ROWS = pytest.mark.parametrize("rows", [1, 2, 7, 33])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    """Equal to 1e-6, or to a rounding of bfloat16 or two."""
    assert ours.dtype == reference.dtype
    tolerance = 1e-6 if ours.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(ours, reference, rtol=tolerance, atol=tolerance)


@ROWS
@DTYPES
@pytest.mark.parametrize("delta_dtype", [torch.float32, torch.bfloat16, None])
@pytest.mark.parametrize("width", [1, 15, 16, 48, 577])
def test_add_norm(rows: int, dtype: torch.dtype, delta_dtype: torch.dtype | None, width: int) -> None:
    norm = RMSNorm((1 + random(width) / 8).to(dtype), 1e-5)
    hidden, delta = random(rows, width), None if delta_dtype is None else random(rows + 1, width)[1:].to(delta_dtype)
    ours, theirs = hidden.clone(), hidden.clone()
    close(CompiledRowOps(compiled()).add_norm(ours, delta, norm), EagerRowOps().add_norm(theirs, delta, norm))
    assert torch.equal(ours, theirs)
    assert torch.equal(ours, hidden) == (delta is None)


@DTYPES
@pytest.mark.parametrize("scale", [1e-4, 0.0, 1e4])
def test_add_norm_of_small_and_large_rows(scale: float, dtype: torch.dtype) -> None:
    norm = RMSNorm((1 + random(40) / 8).to(dtype), 1e-5)
    hidden = random(3, 40) * scale
    close(CompiledRowOps(compiled()).add_norm(hidden, None, norm), norm(hidden))


@ROWS
@DTYPES
@pytest.mark.parametrize("D", [2, 8, 24, 64])
@pytest.mark.parametrize("normalised", [True, False])
def test_rotate(rows: int, dtype: torch.dtype, D: int, normalised: bool) -> None:
    norm = RMSNorm((1 + random(5, D) / 8).to(dtype), 1e-6) if normalised else None
    heads = random(rows, 7, D).to(dtype)
    rotation = torch.polar(torch.full((rows, 1, D // 2), 1.2), 100 * random(rows, 1, D // 2))
    ours, theirs = heads.clone(), heads.clone()
    CompiledRowOps(compiled()).rotate(ours, 5, norm, rotation)
    EagerRowOps().rotate(theirs, 5, norm, rotation)
    tolerance = 2e-6 if dtype == torch.float32 else 2**-6  # eager rounds between norm and rotation
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    assert torch.equal(ours[:, 5:], heads[:, 5:])
    assert not torch.equal(ours[:, :5], heads[:, :5])


@ROWS
@DTYPES
@pytest.mark.parametrize("width", [1, 17, 96])
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_gate(rows: int, dtype: torch.dtype, width: int, scale: float) -> None:
    joined = (random(rows, 2 * width) * scale).to(dtype)
    exact = torch.nn.functional.silu(joined[:, :width].double()) * joined[:, width:].double()
    for ops, roundings in ((CompiledRowOps(compiled()), 1), (EagerRowOps(), 2)):
        tolerance = 1e-6 if dtype == torch.float32 else roundings * 2**-8
        torch.testing.assert_close(ops.gate(joined).double(), exact, rtol=tolerance, atol=tolerance)


@DTYPES
def test_a_row_does_not_depend_on_the_rows_beside_it(dtype: torch.dtype) -> None:
    ops = CompiledRowOps(compiled())
    norm, head_norm = RMSNorm(1 + random(72).to(dtype), 1e-5), RMSNorm(1 + random(3, 24).to(dtype), 1e-5)
    hidden, delta, heads = random(9, 72), random(9, 72).to(dtype), random(9, 4, 24).to(dtype)
    joined, rotation = random(9, 74).to(dtype), torch.polar(torch.ones(9, 1, 12), random(9, 1, 12))

    def run(rows: slice) -> list[torch.Tensor]:
        stream, turned = hidden[rows].clone(), heads[rows].clone()
        normal = ops.add_norm(stream, delta[rows], norm)
        ops.rotate(turned, 3, head_norm, rotation[rows])
        return [stream, normal, turned, ops.gate(joined[rows])]

    together = run(slice(None))
    for row in range(9):
        for alone, whole in zip(run(slice(row, row + 1)), together, strict=True):
            assert torch.equal(alone[0], whole[row])


def test_infinities_and_nan_come_through() -> None:
    """What a broken model computes is seen downstream, not hidden by a kernel."""
    for dtype in (torch.float32, torch.bfloat16):
        joined = torch.tensor([[float("nan"), float("inf"), 1.0, 1.0, 1.0, float("inf")]], dtype=dtype)
        nan, *infinite = CompiledRowOps(compiled()).gate(joined)[0].tolist()
        assert nan != nan
        assert infinite == [float("inf")] * 2


@DTYPES
def test_a_kernel_that_computes_otherwise_is_noticed(dtype: torch.dtype) -> None:
    class Doubled(EagerRowOps):
        def gate(self, joined: torch.Tensor) -> torch.Tensor:
            return 2 * super().gate(joined)

    class Unturned(EagerRowOps):
        def rotate(self, *_: object) -> None:
            return

    def noticed(ops: RowOps) -> bool:
        return not agree(ops, EagerRowOps(), dtype)

    assert [noticed(ops) for ops in (Doubled(), Unturned(), EagerRowOps())] == [True, True, False]
    assert agree(CompiledRowOps(compiled()), EagerRowOps(), dtype)
