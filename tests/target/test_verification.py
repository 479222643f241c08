"""On a CPU a verification computes the laws of the positions that it draws, and of no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.equality import assert_same
from support.scripted_draft import SCRIPTS, ScriptedDraft
from support.target_rig import Rig, assert_clean, connect, request, run
from torch import Tensor

from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.target import verification
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import Mode

from .conftest import Reference


@pytest.mark.parametrize("script", ["perfect", "half_right", "garbage"])
@pytest.mark.parametrize("mode", [Mode.SD, Mode.SSD])
def test_every_position_is_processed_once_and_rejected_ones_never(
    rig: Rig,
    reference: Callable[[list[GenerationRequest]], Reference],
    monkeypatch: pytest.MonkeyPatch,
    mode: Mode,
    script: str,
) -> None:
    fields = {"max_tokens": 30, "ignore_eos": True}
    samplings: list[dict[str, Any]] = [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}]
    requests = [
        request(f"r{i}", range(5, 20 + i), seed=i, **fields, **sampling) for i, sampling in enumerate(samplings)
    ]
    known = reference(requests)
    draft = ScriptedDraft(SCRIPTS[script](known.truth, 4))
    engine = rig.engine(mode, [draft.connect], speculation={"k": 4, "wait_ms": 20.0})
    connect(engine)
    processed: list[RowParams] = []

    def counting(logits: Tensor, rows: list[RowParams], *rest: Any, **named: Any) -> Tensor:
        processed.extend(rows)
        return process(logits, rows, *rest, **named)

    monkeypatch.setattr(verification, "process", counting)
    clients = run(engine, requests)
    assert_same(rig, known.clients, clients, f"{mode} {script}")
    proposed = sum(client.finished.speculation.num_draft_tokens for client in clients if client.finished is not None)
    assert proposed > 0
    assert len(processed) == 2 * 30
    assert_clean(engine, draft)
    engine.stop()
