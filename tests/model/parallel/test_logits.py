"""Logits of a model over several ranks equal those of one rank, float32, every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.model import load, random_tokens, run_whole
from support.ranks import load_ranks
from support.tiny import LOGIT_SCALE, make_checkpoint

from ssd_cluster.config import DType
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan

TOLERANCE = 1e-5 * LOGIT_SCALE  # the logits' spread; 1e-5 for logits of spread 1

CASES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "llama-tied": {"family": "llama", "tie": True},
    "llama-kv-heads-repeated": {"family": "llama", "kv_heads": 1},
    "llama-no-gqa": {"family": "llama", "kv_heads": 4},
    "llama-odd-vocabulary": {"family": "llama", "vocab": 333},
    "llama-odd-vocabulary-tied": {"family": "llama", "vocab": 333, "tie": True},
    "mistral": {"family": "mistral", "head_dim": 32},
    "qwen2": {"family": "qwen2"},
    "qwen2-kv-heads-repeated": {"family": "qwen2", "kv_heads": 1, "tie": True},
    "qwen3": {"family": "qwen3", "head_dim": 32},
    "qwen3-kv-heads-repeated": {"family": "qwen3", "kv_heads": 1, "tie": True, "head_dim": 24},
}


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)
    assert expected.std() > 1


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_equal_one(case: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, **CASES[case])
    tokens = random_tokens(70)
    expected = run_whole(load(folder), tokens)
    runner = load_ranks(folder, 2)
    same(run_whole(runner, tokens), expected)
    runner.close()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_four_ranks_equal_one(kv_heads: int, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, heads=8, kv_heads=kv_heads, head_dim=16, vocab=333)
    tokens = random_tokens(50)
    runner = load_ranks(folder, 4)
    same(run_whole(runner, tokens), run_whole(load(folder), tokens))
    runner.close()


def test_biases_behind_a_sum_are_added_once(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, config={"attention_bias": True, "mlp_bias": True})
    tensors = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    for name, tensor in list(tensors.items()):
        if name.endswith("_proj.weight"):
            tensors[name.replace("weight", "bias")] = torch.randn(len(tensor), generator=generator)
    save_file(tensors, folder / "model.safetensors")
    tokens = random_tokens(40)
    runner = load_ranks(folder, 2)
    same(run_whole(runner, tokens), run_whole(load(folder), tokens))
    runner.close()


def test_ragged_batches_trees_and_spans_without_logits(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen3", head_dim=32)
    one, two = load(folder), load_ranks(folder, 2)
    first, second = random_tokens(40), random_tokens(25, seed=1)
    results = []
    for runner in (one, two):
        a, b = runner.pool.allocate(4), runner.pool.allocate(4)
        parts = [runner.forward(ForwardBatch([CausalSpan(first[:30], 0, a, 30), CausalSpan(second, 0, b, 24)]))]
        parts.append(runner.forward(ForwardBatch([CausalSpan(first[30:], 30, a), CausalSpan([7], 25, b)])))
        parts.append(runner.forward(ForwardBatch([CausalSpan(first[:3], 0, runner.pool.allocate(1), 3)])))
        tree = [9, 8, 7, 6]
        parts.append(runner.forward(ForwardBatch([MaskedSpan(tree, 40, a, [-1, 0, 0, 2])])))
        runner.keep(a, 40, [0, 2, 3])
        parts.append(runner.forward(ForwardBatch([CausalSpan([5], 43, a)])))
        parts.append(runner.forward(ForwardBatch()))
        assert [len(part) for part in parts] == [1, 11, 0, 4, 1, 0]
        results.append(torch.cat(parts))
    same(results[1], results[0])
    two.close()


def test_a_batch_that_does_not_fit_leaves_the_ranks_in_step(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    runner = load_ranks(folder, 2)
    table = runner.pool.allocate(1)
    for span, what in (
        (CausalSpan([1] * 17, 0, table), "block table"),
        (CausalSpan([320], 0, table), "vocabulary"),
        (CausalSpan([1], 600, table), "context"),
    ):
        with pytest.raises(ValueError, match=what):
            runner.forward(ForwardBatch([span]))
    assert runner.failure is None
    tokens = random_tokens(20)
    same(run_whole(runner, tokens), run_whole(load(folder), tokens))
    runner.close()


def test_bfloat16_stays_near_one_rank(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    tokens = random_tokens(40)
    expected = run_whole(load(folder, dtype=DType.BFLOAT16), tokens)
    runner = load_ranks(folder, 2, dtype=DType.BFLOAT16)
    actual = run_whole(runner, tokens)
    runner.close()
    assert runner.dtype == torch.bfloat16
    assert torch.corrcoef(torch.stack([actual.flatten(), expected.flatten()]))[0, 1] > 0.99
