"""The torch reference of merging attention states, against attention over everything at once."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.merge import api, merge_state

from ssd_cluster.model.partial import attend_lse_dense


def test_two_parts_equal_the_whole() -> None:
    torch.manual_seed(0)
    q, keys, values = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 25, 16), torch.randn(2, 3, 25, 16)
    whole, whole_lse = attend_lse_dense(q, keys, values, None)
    for split in (1, 13, 24):
        first = attend_lse_dense(q, keys[:, :, :split], values[:, :, :split], None)
        second = attend_lse_dense(q, keys[:, :, split:], values[:, :, split:], None)
        out, lse = merge_state(*first, *second)
        torch.testing.assert_close(out, whole, rtol=0, atol=2e-6)
        torch.testing.assert_close(lse, whole_lse, rtol=0, atol=2e-6)


def test_part_without_keys_is_ignored_whatever_it_holds() -> None:
    out, lse = torch.randn(5, 2, 8), torch.randn(5, 2)
    nothing, empty = torch.full_like(out, math.nan), torch.full_like(lse, -math.inf)
    for merged, scale in (merge_state(out, lse, nothing, empty), merge_state(nothing, empty, out, lse)):
        assert torch.equal(merged, out)
        assert torch.equal(scale, lse)
    merged, scale = merge_state(nothing, empty, nothing, empty)
    assert torch.equal(merged, torch.zeros_like(out))
    assert torch.equal(scale, empty)


def test_far_apart_scores_neither_overflow_nor_vanish() -> None:
    a, b = torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
    for low, high in ((-3e38, 3e38), (-200.0, 200.0)):
        out, lse = merge_state(a, torch.tensor([[high]]), b, torch.tensor([[low]]))
        assert torch.equal(out, a)
        assert lse.item() == pytest.approx(high)


def test_half_precision_is_merged_in_float32() -> None:
    torch.manual_seed(1)
    a, b, la, lb = torch.randn(9, 2, 8), torch.randn(9, 2, 8), torch.randn(9, 2), torch.randn(9, 2)
    out, _ = merge_state(a.bfloat16(), la, b.bfloat16(), lb)
    assert out.dtype == torch.bfloat16
    exact, _ = merge_state(a.bfloat16().float(), la, b.bfloat16().float(), lb)
    assert torch.equal(out, exact.bfloat16())


def test_refusals() -> None:
    out, lse = torch.zeros(3, 2, 4), torch.zeros(3, 2)
    with pytest.raises(ValueError, match="need outputs"):
        merge_state(out, lse[:, :1], out, lse)
    with pytest.raises(ValueError, match="one floating dtype"):
        merge_state(out, lse, out.half(), lse)
    with pytest.raises(ValueError, match="must be float32"):
        merge_state(out, lse.double(), out, lse)
    with pytest.raises(KernelUnavailable, match="need a CUDA device"):
        merge_state(out, lse, out, lse, backend="flashinfer")


def test_documented_examples_run() -> None:
    results = doctest.testmod(api)
    assert (results.attempted, results.failed) == (4, 0)
