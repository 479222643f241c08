"""The sdpa backend against attention written out over everything at once, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from ssd_cluster.errors import ConfigError
from ssd_cluster.model.attention import attention_backend
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.decoder_config import DecoderConfig, parse_config
from ssd_cluster.model.kv import BlockPool, PagedKV, TailPool
from ssd_cluster.model.partial import attend_lse, attend_lse_dense
from ssd_cluster.model.sdpa import SdpaAttention

CPU = torch.device("cpu")
SCATTERED = [5, 2, 9, 3, 11, 0]
ASCENDING = [4, 5, 6, 7, 8, 9]


def config(heads: int = 6, kv_heads: int = 2) -> DecoderConfig:
    return parse_config(
        {
            "model_type": "llama",
            "hidden_size": heads * 16,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "num_hidden_layers": 2,
            "intermediate_size": 8,
            "vocab_size": 8,
            "max_position_embeddings": 64,
        }
    )


def backend(shape: DecoderConfig, dtype: torch.dtype = torch.float32, tail_depth: int = 4) -> SdpaAttention:
    """A backend over random pages and tails: 12 blocks of 8, 8 tails."""
    torch.manual_seed(0)
    kv = PagedKV(2, BlockPool(12, 8), shape.n_kv_heads, shape.head_dim, dtype, CPU)
    tails = TailPool(8, tail_depth, 2, shape.n_kv_heads, shape.head_dim, CPU)
    kv.data.normal_()
    tails.data.normal_()
    return SdpaAttention(shape, kv, tails)


def inputs(shape: DecoderConfig, n: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys/values as the decoder hands them over: slices of one fused projection."""
    torch.manual_seed(1)
    heads = torch.randn(n, shape.n_heads + 2 * shape.n_kv_heads, shape.head_dim).to(dtype)
    return heads[:, : shape.n_heads], heads[:, shape.n_heads :].view(n, 2, shape.n_kv_heads, shape.head_dim)


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
def test_causal_span_equals_dense(table: list[int], heads: int, kv_heads: int, start: int, n: int) -> None:
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
@pytest.mark.parametrize(
    ("visible", "depths"),
    [([20], [0]), ([20] * 4, [0] * 4), ([17, 18, 20, 20, 1], [0, 3, 2, 0, 1]), ([9, 9, 9], [3, 3, 3])],
    ids=["one", "same", "ragged", "deep"],
)
def test_tree_cascade_equals_dense_mask(
    table: list[int], heads: int, kv_heads: int, visible: list[int], depths: list[int]
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
def test_batch_equals_its_spans_alone(kinds: Any) -> None:
    """Sequences of few rows run together, padded; single rows and long spans run apart; the order stays."""
    shape = config()
    spans = [
        TreeSpan([0] * 2, [0], [5, 8], [2, 0], [1, 0]),
        CausalSpan([0] * 3, 4, [3]),
        CausalSpan([0], 10, [5, 6]),
        TreeSpan([0], [4], [7], [5], [3]),
        CausalSpan([0] * 36, 0, [7, 8, 9, 10, 11]),
        CausalSpan([0] * 5, 9, [2, 1]),
        TreeSpan([0] * 3, [4], [7, 8, 6], [6, 7, 4], [0, 1, 0]),
        CausalSpan([], 9, []),
    ]
    spans = [span for span in spans if isinstance(span, kinds)]
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


def test_bfloat16_tree_is_near_dense() -> None:
    shape = config()
    attention = backend(shape, torch.bfloat16)
    q, kv = inputs(shape, 3, torch.bfloat16)
    span = TreeSpan([0] * 3, SCATTERED, [30, 31, 31], [0, 1, 2], [0, 2, 1])
    out = attention.plan(ForwardBatch([span])).attend(0, q, kv)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), dense_tree(attention, span, q, 0), rtol=0, atol=0.03)


def test_what_does_not_fit_is_refused_before_anything_is_written() -> None:
    attention = backend(config())
    before = attention.kv.data.clone()
    with pytest.raises(ValueError, match="17 positions do not fit a block table of 2 blocks"):
        attention.plan(ForwardBatch([CausalSpan([0] * 3, 14, [0, 1])]))
    with pytest.raises(ValueError, match="at least one position"):
        attention.plan(ForwardBatch([TreeSpan([0], [0], [0], [0], [0])]))
    with pytest.raises(ValueError, match="tail entry 4 does not fit tails of 4"):
        attention.plan(ForwardBatch([TreeSpan([0], [0], [3], [0], [4])]))
    without = SdpaAttention(attention.config, attention.kv, None)
    with pytest.raises(ValueError, match="without any"):
        without.plan(ForwardBatch([TreeSpan([0], [0], [3], [0], [0])]))
    assert torch.equal(attention.kv.data, before)


def test_unknown_backend_is_named() -> None:
    with pytest.raises(ConfigError, match="'magic' is unknown; available are sdpa"):
        attention_backend("magic")
    assert attention_backend("sdpa") is SdpaAttention
