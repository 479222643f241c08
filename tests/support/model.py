"""Short forms for tests that run tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.runner import ModelRunner, load_runner


def load(folder: Path, *, tail_slots: int = 0, tail_depth: int = 0, **settings: Any) -> ModelRunner:
    """A float32 runner with 1024 KV tokens; ``settings`` overrides entries of ``ModelSettings``."""
    chosen = {"path": str(folder), "dtype": DType.FLOAT32, "kv_tokens": 1024} | settings
    return load_runner(ModelSettings(**chosen), tail_slots=tail_slots, tail_depth=tail_depth)


def random_tokens(n: int, seed: int = 0, vocab: int = 300) -> list[int]:
    """``n`` ids from 3 (the first that is no special) to ``vocab``."""
    return torch.randint(3, vocab, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def run_whole(runner: ModelRunner, tokens: list[int]) -> torch.Tensor:
    """Logits [T, V] of one sequence, run alone in one span on fresh blocks."""
    table = runner.pool.allocate(-(-len(tokens) // runner.pool.block_size))
    logits = runner.forward(ForwardBatch([CausalSpan(tokens, 0, table)]))
    runner.pool.free(table)
    return logits
