"""The sdpa backend, in torch and with the compiled kernel, against attention written out in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.attention import ASCENDING, SCATTERED, SPANS, TREES, config, inputs, memory
from support.compiled import compiled

from ssd_cluster.errors import ConfigError
from ssd_cluster.model.attention import attention_backend
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.compiled_attention import CompiledAttention
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.partial import attend_lse, attend_lse_dense
from ssd_cluster.model.sdpa import SdpaAttention

Make = Callable[..., SdpaAttention]


@pytest.fixture(params=["torch", "compiled"])
def backend(request: pytest.FixtureRequest) -> Make:
    """Makes backends of a shape: (shape, dtype, tail_depth)."""
    kernels = compiled() if request.param == "compiled" else None

    def make(shape: DecoderConfig, dtype: torch.dtype = torch.float32, tail_depth: int = 4) -> SdpaAttention:
        arguments = memory(shape, dtype, tail_depth)
        return SdpaAttention(*arguments) if kernels is None else CompiledAttention(*arguments, kernels)

    return make


def dense(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[R, H * D] of q [R, H, D] over keys, values [L, G, D] where mask [R, L] is true; one softmax, float64."""
    repeats = q.shape[1] // keys.shape[1]
    keys, values = (x.double().repeat_interleave(repeats, dim=1) for x in (keys, values))
    scores = torch.einsum("rhd,lhd->rhl", q.double(), keys) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask[:, None, :], float("-inf")).softmax(-1)
    return torch.einsum("rhl,lhd->rhd", weights, values).flatten(1).float()


def pages(attention: SdpaAttention, table: list[int], length: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = attention.kv.data[layer].view(12, 8, *attention.kv.data.shape[2:])[table].flatten(0, 1)[:length]
    return data[:, 0], data[:, 1]


def dense_tree(attention: SdpaAttention, span: TreeSpan, q: torch.Tensor, layer: int) -> torch.Tensor:
    """The dense-mask form of a tree span: every row over all pages and all tails at once, with one mask."""
    longest = max(span.visible)
    keys, values = pages(attention, span.block_table, longest, layer)
    tails = attention.tails.data[layer, span.tails]
    keys = torch.cat([keys, tails[:, :, 0].flatten(0, 1)])
    values = torch.cat([values, tails[:, :, 1].flatten(0, 1)])
    mask = torch.zeros(len(span.tokens), len(keys), dtype=torch.bool)
    depth = attention.tails.depth
    for row, (visible, own) in enumerate(zip(span.visible, span.depths, strict=True)):
        mask[row, :visible] = True
        mask[row, longest + row * depth : longest + row * depth + own + 1] = True
    return dense(q, keys, values, mask)


@pytest.mark.parametrize("table", [ASCENDING, SCATTERED], ids=["ascending", "scattered"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize(("start", "n"), [(0, 1), (0, 7), (0, 40), (13, 1), (13, 5), (3, 40)])
def test_causal_span_equals_dense(
    backend: Make, table: list[int], heads: int, kv_heads: int, start: int, n: int
) -> None:
    shape = config(heads, kv_heads)
    attention = backend(shape)
    q, kv = inputs(shape, n)
    before = attention.kv.data.clone()
    out = attention.plan(ForwardBatch([CausalSpan([0] * n, start, table)])).attend(1, q, kv)
    keys, values = pages(attention, table, start + n, 1)
    assert torch.equal(keys[start:], kv[:, 0])
    assert torch.equal(values[start:], kv[:, 1])
    assert (attention.kv.data != before).flatten(2).any(-1).sum() == n
    mask = torch.arange(start + n) <= torch.arange(start, start + n)[:, None]
    torch.testing.assert_close(out, dense(q, keys, values, mask), rtol=0, atol=1e-5)


@pytest.mark.parametrize("table", [ASCENDING, SCATTERED], ids=["ascending", "scattered"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (4, 1)])
@pytest.mark.parametrize(("visible", "depths"), TREES)
def test_tree_cascade_equals_dense_mask(
    backend: Make, table: list[int], heads: int, kv_heads: int, visible: list[int], depths: list[int]
) -> None:
    shape = config(heads, kv_heads)
    attention = backend(shape)
    rows = len(visible)
    q, kv = inputs(shape, rows)
    span = TreeSpan([0] * rows, table, visible, [6, 1, 4, 3, 0][:rows], depths)
    before = attention.kv.data.clone()
    out = attention.plan(ForwardBatch([span])).attend(1, q, kv)
    assert torch.equal(attention.kv.data, before)
    assert torch.equal(attention.tails.data[1, span.tails, depths], kv)
    torch.testing.assert_close(out, dense_tree(attention, span, q, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kinds", [CausalSpan, TreeSpan, (CausalSpan, TreeSpan)], ids=["causal", "tree", "mixed"])
def test_batch_equals_its_spans_alone(backend: Make, kinds: Any) -> None:
    """Sequences of few rows run together, padded; single rows and long spans run apart; the order stays."""
    shape = config()
    spans = [span for span in SPANS if isinstance(span, kinds)]
    stops = list(itertools.accumulate(len(span.tokens) for span in spans))
    q, kv = inputs(shape, stops[-1])
    together = backend(shape)
    out = together.plan(ForwardBatch(list(spans))).attend(0, q, kv)
    alone = backend(shape)
    for span, start, stop in zip(spans, [0, *stops], stops, strict=False):
        if start == stop:
            continue
        expected = alone.plan(ForwardBatch([span])).attend(0, q[start:stop], kv[start:stop])
        torch.testing.assert_close(out[start:stop], expected, rtol=0, atol=1e-6)
    assert torch.equal(together.kv.data, alone.kv.data)
    assert torch.equal(together.tails.data, alone.tails.data)


def test_partial_attention_written_out_equals_the_kernel() -> None:
    torch.manual_seed(0)
    q, keys, values = torch.randn(3, 2, 5, 16), torch.randn(3, 2, 9, 16), torch.randn(3, 2, 9, 16)
    mask = torch.zeros(5, 9).masked_fill(torch.rand(5, 9) < 0.3, float("-inf"))
    for given in (None, mask):
        fast, written = attend_lse(q, keys, values, given), attend_lse_dense(q, keys, values, given)
        torch.testing.assert_close(fast[0], written[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(fast[1], written[1], rtol=0, atol=1e-5)


def test_bfloat16_tree_is_near_dense(backend: Make) -> None:
    shape = config()
    attention = backend(shape, torch.bfloat16)
    q, kv = inputs(shape, 3, torch.bfloat16)
    span = TreeSpan([0] * 3, SCATTERED, [30, 31, 31], [0, 1, 2], [0, 2, 1])
    out = attention.plan(ForwardBatch([span])).attend(0, q, kv)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), dense_tree(attention, span, q, 0), rtol=0, atol=0.03)


def test_what_does_not_fit_is_refused_before_anything_is_written(backend: Make) -> None:
    attention = backend(config())
    before = attention.kv.data.clone()
    with pytest.raises(ValueError, match="17 positions do not fit a block table of 2 blocks"):
        attention.plan(ForwardBatch([CausalSpan([0] * 3, 14, [0, 1])]))
    with pytest.raises(ValueError, match="at least one position"):
        attention.plan(ForwardBatch([TreeSpan([0], [0], [0], [0], [0])]))
    with pytest.raises(ValueError, match="tail entry 4 does not fit tails of 4"):
        attention.plan(ForwardBatch([TreeSpan([0], [0], [3], [0], [4])]))
    attention.tails = None
    with pytest.raises(ValueError, match="without any"):
        attention.plan(ForwardBatch([TreeSpan([0], [0], [3], [0], [0])]))
    assert torch.equal(attention.kv.data, before)


def test_unknown_backend_is_named() -> None:
    with pytest.raises(ConfigError, match="'magic' is unknown; available are sdpa"):
        attention_backend("magic")
    assert attention_backend("sdpa") is SdpaAttention
