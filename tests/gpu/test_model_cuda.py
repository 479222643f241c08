"""The decoder on a CUDA device gives the CPU's logits: same code, same backend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.model import load, random_tokens
from support.tiny import make_checkpoint

from ssd_cluster.config import Device, DType
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.runner import ModelRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


def passes(runner: ModelRunner) -> list[torch.Tensor]:
    """Logits of prefill, verify rows on ascending and scattered blocks, decode rows, and tree rows."""
    first, second = random_tokens(150, seed=1), random_tokens(40, seed=2)
    batches = [
        [CausalSpan(first, 0, list(range(10))), CausalSpan(second, 0, [20, 15, 17])],
        [CausalSpan(random_tokens(6), 150, list(range(10))), CausalSpan([9], 40, [20, 15, 17])],
        [TreeSpan([5, 6, 7], list(range(10)), [150, 149, 150], [0, 1, 2], [0, 0, 0])],
        [TreeSpan([8, 9, 7], list(range(10)), [150, 149, 150], [0, 1, 3], [1, 1, 0]), CausalSpan([4], 0, [30])],
        [CausalSpan(random_tokens(60, seed=3), 150, [*range(10), 25, 26, 27, 28])],
    ]
    return [runner.forward(ForwardBatch(list(spans))).cpu() for spans in batches]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_float32_equals_the_cpu(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family=family)
    expected = passes(load(folder, tail_slots=4, tail_depth=2))
    actual = passes(load(folder, tail_slots=4, tail_depth=2, device=Device.CUDA))
    for gpu, cpu in zip(actual, expected, strict=True):
        torch.testing.assert_close(gpu, cpu, rtol=0, atol=1e-3)


def test_bfloat16_is_the_default_and_near_float32(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    runner = load(folder, tail_slots=4, tail_depth=2, device=Device.CUDA, dtype=DType.AUTO)
    assert runner.dtype == torch.bfloat16
    for rounded, exact in zip(passes(runner), passes(load(folder, tail_slots=4, tail_depth=2)), strict=True):
        assert torch.corrcoef(torch.stack([rounded.flatten(), exact.flatten()]))[0, 1] > 0.99
