"""The flashinfer backend: what it plans and merges, with FlashInfer's operation in torch; refusals without CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from support.attention import SCATTERED, SPANS, TREES, config, inputs, memory
from support.paged_wrapper import TorchPagedWrapper

from ssd_cluster.config import Device, DType, ModelSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.model.attention import attention_backend
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.flashinfer_backend import FlashInferAttention
from ssd_cluster.model.sdpa import SdpaAttention


class OnTorch(FlashInferAttention):
    def _wrappers(self) -> tuple[TorchPagedWrapper, TorchPagedWrapper]:
        return TorchPagedWrapper(), TorchPagedWrapper()


def compare(spans: list[Any], heads: int = 6, kv_heads: int = 2, dtype: torch.dtype = torch.float32) -> None:
    """Output, pages and tails of both backends over two layers of one plan."""
    shape = config(heads, kv_heads)
    q, kv = inputs(shape, sum(len(span.tokens) for span in spans), dtype)
    ours, reference = (backend(*memory(shape, dtype)) for backend in (OnTorch, SdpaAttention))
    plans = [backend.plan(ForwardBatch(list(spans))) for backend in (ours, reference)]
    for layer in (1, 0):
        out, wanted = (plan.attend(layer, q, kv) for plan in plans)
        assert out.dtype == wanted.dtype
        torch.testing.assert_close(out, wanted, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2)
    assert torch.equal(ours.kv.data, reference.kv.data)
    assert torch.equal(ours.tails.data, reference.tails.data)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize(("start", "n"), [(0, 1), (0, 7), (0, 40), (13, 1), (13, 3), (3, 40), (15, 1), (16, 1)])
def test_causal_span_equals_sdpa(heads: int, kv_heads: int, start: int, n: int) -> None:
    compare([CausalSpan([0] * n, start, SCATTERED)], heads, kv_heads)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize(("visible", "depths"), TREES)
def test_tree_rows_equal_sdpa(heads: int, kv_heads: int, visible: list[int], depths: list[int]) -> None:
    rows = len(visible)
    compare([TreeSpan([0] * rows, SCATTERED, visible, [6, 1, 4, 3, 0][:rows], depths)], heads, kv_heads)


@pytest.mark.parametrize("kinds", [CausalSpan, TreeSpan, (CausalSpan, TreeSpan)], ids=["causal", "tree", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_equal_sdpa(kinds: Any, dtype: torch.dtype) -> None:
    compare([span for span in SPANS if isinstance(span, kinds)], dtype=dtype)


def test_shared_positions_are_read_once_per_session() -> None:
    backend = OnTorch(*memory(config()))
    span = TreeSpan([0] * 3, SCATTERED, [20, 18, 19], [0, 1, 2], [0, 0, 0])
    backend.plan(ForwardBatch([span]))
    assert backend.shared._lengths == [18]
    assert backend.shared._rows == [0, 3]


def test_spans_that_do_not_fit_are_refused_before_anything_runs() -> None:
    backend = OnTorch(*memory(config()))
    for span in (CausalSpan([0] * 9, 8, [3, 4]), TreeSpan([0], [3], [9], [0], [0])):
        with pytest.raises(ValueError, match="do not fit a block table"):
            backend.plan(ForwardBatch([span]))
    with pytest.raises(ValueError, match="at least one position"):
        backend.plan(ForwardBatch([TreeSpan([0], [3], [0], [0], [0])]))
    with pytest.raises(ValueError, match="does not fit tails"):
        backend.plan(ForwardBatch([TreeSpan([0], [3], [1], [0], [4])]))


def test_refused_on_a_cpu() -> None:
    with pytest.raises(ConfigError, match="need a CUDA device") as refused:
        attention_backend("flashinfer")(*memory(config()))
    assert refused.value.param == "attention"


@pytest.mark.parametrize(("device", "dtype"), [(Device.CPU, DType.AUTO), (Device.CUDA, DType.FLOAT32)])
def test_refused_when_the_configuration_is_read(device: Device, dtype: DType) -> None:
    with pytest.raises(ValidationError, match="attention flashinfer needs device cuda and dtype bfloat16"):
        ModelSettings(path="x", device=device, dtype=dtype, attention="flashinfer")
    assert ModelSettings(path="x", device=Device.CUDA, attention="flashinfer").attention == "flashinfer"
