"""The flashinfer attention backend on a CUDA device against sdpa: spans of both kinds, a whole model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from support.attention import SCATTERED, SPANS, TREES, config, inputs, memory
from support.model import load, random_tokens
from support.tiny import make_checkpoint

from ssd_cluster.config import Device, DType
from ssd_cluster.model.attention import attention_backend
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
    pytest.mark.skipif(
        importlib.util.find_spec("flashinfer") is None, reason="needs the package flashinfer-python (extra cuda)"
    ),
]
CUDA = torch.device("cuda")


def compare(spans: list[Any], heads: int, kv_heads: int, head_dim: int) -> None:
    shape = config(heads, kv_heads, head_dim)
    q, kv = inputs(shape, sum(len(span.tokens) for span in spans), torch.bfloat16, CUDA)
    backends = [attention_backend(name)(*memory(shape, torch.bfloat16, device=CUDA)) for name in ("flashinfer", "sdpa")]
    plans = [backend.plan(ForwardBatch(list(spans))) for backend in backends]
    for layer in (1, 0):
        out, wanted = (plan.attend(layer, q, kv) for plan in plans)
        torch.testing.assert_close(out, wanted, rtol=0, atol=3e-2)
    assert torch.equal(backends[0].kv.data, backends[1].kv.data)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (4, 4), (8, 1), (9, 3)])
@pytest.mark.parametrize("kinds", [CausalSpan, TreeSpan, (CausalSpan, TreeSpan)], ids=["causal", "tree", "mixed"])
def test_spans_equal_sdpa(kinds: Any, heads: int, kv_heads: int, head_dim: int) -> None:
    compare([span for span in SPANS if isinstance(span, kinds)], heads, kv_heads, head_dim)


@pytest.mark.parametrize(("visible", "depths"), TREES)
def test_tree_rows_equal_sdpa(visible: list[int], depths: list[int]) -> None:
    rows = len(visible)
    compare([TreeSpan([0] * rows, SCATTERED, visible, [6, 1, 4, 3, 0][:rows], depths)], 6, 2, 64)


def test_whole_model_is_as_near_to_float32_as_sdpa(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, head_dim=64)
    tokens = random_tokens(150)
    batch = [CausalSpan(tokens, 0, list(range(10))), CausalSpan(random_tokens(20, seed=2), 0, [20, 15])]
    exact = load(folder).forward(ForwardBatch(list(batch)))
    for attention in ("flashinfer", "sdpa"):
        runner = load(folder, device=Device.CUDA, dtype=DType.BFLOAT16, attention=attention)
        actual = runner.forward(ForwardBatch(list(batch))).cpu()
        assert torch.corrcoef(torch.stack([actual.flatten(), exact.flatten()]))[0, 1] > 0.99
