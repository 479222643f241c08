"""All layers in one compiled call give the bits of the same functions called one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiled import compiled, torch_threads
from support.model import load, random_tokens
from support.tiny import make_checkpoint

from ssd_cluster.config import DType
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.decoder import Decoder
from ssd_cluster.model.runner import ModelRunner

CASES = [
    pytest.param({"family": "llama"}, {"dtype": DType.FLOAT32, "weights": "int8"}, id="llama, int8"),
    pytest.param({"family": "qwen3", "head_dim": 32}, {"dtype": DType.BFLOAT16, "weights": "int8"}, id="qwen3, int8"),
    pytest.param({"family": "qwen2"}, {"dtype": DType.BFLOAT16}, id="qwen2, bfloat16"),
    pytest.param({"family": "qwen3", "head_dim": 32}, {"dtype": DType.BFLOAT16}, id="qwen3, bfloat16"),
]


def decoder(runner: ModelRunner) -> Decoder:
    assert runner._decoder is not None
    return runner._decoder


def logits(runner: ModelRunner) -> list[torch.Tensor]:
    """Of a long prompt, then of steps, verifications and tree rows, alone and together."""
    tables = [runner.pool.allocate(4) for _ in range(3)]
    found = [runner.forward(ForwardBatch([CausalSpan(random_tokens(40), 0, table)])) for table in tables]
    spans = [
        CausalSpan(random_tokens(1, seed=1), 40, tables[0]),
        CausalSpan(random_tokens(6, seed=2), 40, tables[1]),
        TreeSpan(random_tokens(3, seed=3), tables[2], [20, 18, 20], [4, 1, 7], [0, 0, 0]),
    ]
    found += [runner.forward(ForwardBatch([span])) for span in spans]
    found.append(runner.forward(ForwardBatch(spans)))
    for table in tables:
        runner.pool.free(table)
    return found


@pytest.mark.parametrize(("model", "settings"), CASES)
def test_one_call_gives_the_same_bits(
    model: dict[str, Any], settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "weights" not in settings and not compiled().tiles:
        pytest.skip("this processor has no AMX tiles")
    compiled()
    runner = load(make_checkpoint(tmp_path, hidden=64, **model), tail_slots=8, tail_depth=4, **settings)
    assert decoder(runner)._compiled is not None
    together = logits(runner)
    with torch_threads(3):
        shared = logits(runner)
    for one, other in zip(together, shared, strict=True):
        assert torch.equal(one, other)
    monkeypatch.setattr(decoder(runner), "_compiled", None)
    for one, other in zip(together, logits(runner), strict=True):
        assert torch.equal(one, other)


def test_layers_in_torch_are_not_called_so(tmp_path: Path) -> None:
    compiled()
    folder = make_checkpoint(tmp_path)
    for settings in ({"dtype": DType.FLOAT32}, {"dtype": DType.BFLOAT16, "cpu_kernels": "off"}):
        assert decoder(load(folder, **settings))._compiled is None
