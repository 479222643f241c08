"""The embedded pair in this process, answering many prompts at once."""

from __future__ import annotations

import json
import queue
from collections.abc import Sequence
from pathlib import Path

from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.spec import EngineSpec, PairOptions, engine_spec
from ssd_cluster.config import DType, MissPolicy, SpeculationSettings
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest, SpeculationStats
from ssd_cluster.types import Mode

DATA = Path(__file__).parent.parent / "data"
PATIENCE_S = 240.0


def oracle(limit: int | None = None) -> list[dict[str, list[int]]]:
    """Recorded rows: ``prompt`` and ``output`` ids of transformers' greedy generate."""
    rows: list[dict[str, list[int]]] = json.loads((DATA / "oracle_smollm2.json").read_text())["rows"]
    return rows[:limit]


def real_spec(mode: Mode, dtype: DType, k: int = 5) -> EngineSpec:
    """The embedded pair, unpinned, with waits long enough for a busy machine."""
    speculation = SpeculationSettings(k=k, rows=12, wait_ms=5000.0, miss_policy=MissPolicy.RULE)
    options = PairOptions(
        target="smollm2-135m-instruct",
        draft="smollm2-135m-draft",
        speculation=speculation,
        dtype=dtype,
        target_cores=None,
        draft_cores=None,
        max_batch=10,
    )
    return engine_spec(mode, options)


def answer_all(
    local: LocalEngine, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> tuple[list[list[int]], SpeculationStats]:
    """Output ids of every prompt, and the summed counts."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    outputs: list[list[int]] = [[] for _ in prompts]
    for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
        local.engine.submit(GenerationRequest(str(index), tuple(prompt), one), events.put)
    total, open_requests = SpeculationStats(), len(prompts)
    while open_requests:
        event = events.get(timeout=PATIENCE_S)
        if isinstance(event, Delta):
            outputs[int(event.request_id)] += event.token_ids
        elif isinstance(event, Finished):
            assert event.error is None
            open_requests -= 1
            total.num_accepted_draft_tokens += event.speculation.num_accepted_draft_tokens
            total.cache_hits += event.speculation.cache_hits
    return outputs, total
