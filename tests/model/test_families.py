"""Logits of every supported family against transformers' own, float32, random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.model import load, random_tokens, run_whole
from support.tiny import make_checkpoint

from ssd_cluster.config import DType
from ssd_cluster.model.batch import CausalSpan, ForwardBatch

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-tied": {"family": "llama", "tie": True},
    "llama-llama3-rope": {"family": "llama", "rope_scaling": LLAMA3, "rope_theta": 500_000.0},
    "llama-linear-rope": {"family": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama-dynamic-rope": {"family": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "llama-yarn-rope": {"family": "llama", "rope_scaling": YARN},
    "llama-new-rope-form": {
        "family": "llama",
        "config": {"rope_parameters": LLAMA3 | {"rope_theta": 50_000.0}, "rope_theta": None, "rope_scaling": None},
    },
    "llama-no-gqa": {"family": "llama", "kv_heads": 4},
    "llama-one-kv-head": {"family": "llama", "kv_heads": 1},
    "mistral": {"family": "mistral"},
    "mistral-wide-heads": {"family": "mistral", "head_dim": 32},
    "qwen2": {"family": "qwen2"},
    "qwen2-tied": {"family": "qwen2", "tie": True},
    "qwen3": {"family": "qwen3", "head_dim": 32},
    "qwen3-tied": {"family": "qwen3", "tie": True, "head_dim": 24},
}


def oracle(folder: Path, tokens: list[int]) -> torch.Tensor:
    """Logits [T, V] of transformers, float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    """In torch alone and with compiled kernels; of 150 tokens at once, and with the last four as decoding runs them."""
    folder = make_checkpoint(tmp_path, **CASES[case])
    tokens = random_tokens(150)
    expected = oracle(folder, tokens)
    assert expected.std() > 1
    for cpu_kernels in ("off", "auto"):
        runner = load(folder, cpu_kernels=cpu_kernels)
        logits = run_whole(runner, tokens)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
        table = runner.pool.allocate(10)
        runner.forward(ForwardBatch([CausalSpan(tokens[:146], 0, table, 146)]))
        last = runner.forward(ForwardBatch([CausalSpan(tokens[146:], 146, table)]))
        torch.testing.assert_close(last, expected[146:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("scaling", [{"type": "linear", "factor": 2.0}, LLAMA3, YARN])
def test_rope_scaling_changes_the_logits(scaling: dict[str, Any], tmp_path: Path) -> None:
    tokens = random_tokens(60)
    plain, scaled = (
        run_whole(load(make_checkpoint(tmp_path / name, rope_scaling=rope)), tokens)
        for name, rope in (("plain", None), ("scaled", scaling))
    )
    assert (plain - scaled).abs().max() > 0.1


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_bfloat16_stays_near_float32(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, family=family)
    tokens = random_tokens(40)
    exact, rounded = (run_whole(load(folder, dtype=dtype), tokens) for dtype in (DType.FLOAT32, DType.BFLOAT16))
    assert rounded.dtype == torch.float32
    correlation = torch.corrcoef(torch.stack([exact.flatten(), rounded.flatten()]))[0, 1]
    assert correlation > 0.99
    assert not torch.equal(exact, rounded)
