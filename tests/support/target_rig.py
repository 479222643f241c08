"""Runs requests through a target engine, step by step or with its thread, and collects what clients would see."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssd_cluster.config import DType, ModelSettings, SpeculationSettings, TargetSettings
from ssd_cluster.model.kv import BlockPool
from ssd_cluster.model.runner import ModelRunner, load_runner
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.replica import Connector
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest, SpeculativeOptions
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import FinishReason, Mode
from support.scripted_draft import ScriptedDraft, Truth

STEP_LIMIT = 20_000


@dataclass
class ChoiceResult:
    """Everything one choice sent."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: FinishReason | None = None
    stop_reason: str | int | None = None
    deltas: list[Delta] = field(default_factory=list)


class Client:
    """Sink of one request. Fails on events that no client may see."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.choices = [ChoiceResult() for _ in range(request.params.n)]
        self.finished: Finished | None = None

    def __call__(self, event: Event) -> None:
        assert self.finished is None, "event after Finished"
        if isinstance(event, Finished):
            self.finished = event
            return
        choice = self.choices[event.choice]
        assert choice.reason is None, "delta after the choice's end"
        choice.token_ids += event.token_ids
        choice.text += event.text
        choice.deltas.append(event)
        choice.reason, choice.stop_reason = event.finish_reason, event.stop_reason

    @property
    def tokens(self) -> list[list[int]]:
        return [choice.token_ids for choice in self.choices]


@dataclass
class Rig:
    """A tiny model and its tokenizer; engines are made from it, each with an empty KV pool."""

    runner: ModelRunner
    tokenizer: Tokenizer
    model: ModelSettings

    @classmethod
    def load(cls, folder: Path, **model: Any) -> Rig:
        fields = {"dtype": DType.FLOAT32, "kv_tokens": 4096, "block_size": 8} | model
        settings = ModelSettings(path=str(folder), **fields)
        return cls(load_runner(settings), Tokenizer.load(folder), settings)

    def engine(
        self,
        mode: Mode,
        connectors: Sequence[Connector] = (),
        *,
        blocks: int | None = None,
        speculation: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> TargetEngine:
        total = self.model.kv_tokens // self.model.block_size
        self.runner.pool = BlockPool(blocks or total, self.model.block_size, self.model.prefix_cache)
        spec = SpeculationSettings(**({"wait_ms": 2.0} | (speculation or {})))
        target = TargetSettings(model=self.model, mode=mode, speculation=spec, **settings)
        return TargetEngine(self.runner, self.tokenizer, target, connectors, clock=clock, rng=random.Random(7))


def request(
    name: str,
    prompt: Iterable[int],
    *,
    speculative: SpeculativeOptions | None = None,
    priority: int = 0,
    **params: Any,
) -> GenerationRequest:
    """A request with sampling parameters as keywords; seed 1234 unless given."""
    fields = {"seed": 1234, "max_tokens": 24} | params
    return GenerationRequest(
        name, tuple(prompt), SamplingParams(**fields), speculative or SpeculativeOptions(), priority
    )


def submit(engine: TargetEngine, requests: Iterable[GenerationRequest]) -> list[Client]:
    clients = [Client(one) for one in requests]
    for client in clients:
        engine.submit(client.request, client)
    return clients


def run(engine: TargetEngine, requests: Iterable[GenerationRequest]) -> list[Client]:
    """Submit all at once and step until every one has ended."""
    clients = submit(engine, requests)
    drain(engine)
    assert all(client.finished is not None and client.finished.error is None for client in clients)
    return clients


def drain(engine: TargetEngine) -> None:
    """Step until no request is left, and once more: a step with nothing to run brings the metrics up to date."""
    for _ in range(STEP_LIMIT):
        idle = not engine.snapshot().requests
        engine.step()
        if idle:
            return
    raise AssertionError("the engine does not come to an end")


def connect(engine: TargetEngine, timeout_s: float = 5.0) -> None:
    """Step until a draft replica is ready."""
    deadline = time.monotonic() + timeout_s
    while not engine.drafts.ready:
        assert time.monotonic() < deadline, "no draft came up"
        engine.step()
        time.sleep(0.0005)


def learn(truth: Truth, clients: Iterable[Client]) -> None:
    """Record what the target said, for scripted drafts."""
    for client in clients:
        params = client.request.params
        assert params.seed is not None
        for index, tokens in enumerate(client.tokens):
            seed = params.choice_seed(params.seed, index)
            truth.record(seed, params.temperature, (*client.request.prompt_token_ids, *tokens))


def assert_clean(engine: TargetEngine, *drafts: ScriptedDraft) -> None:
    """Nothing is left behind: all blocks free, no session open, no protocol violation."""
    snapshot = engine.snapshot()
    assert snapshot.free_blocks == snapshot.total_blocks
    assert snapshot.running == snapshot.waiting == 0
    assert not any(snapshot.sessions.values())
    engine._runner.pool.check()
    for draft in drafts:
        assert not draft.violations, draft.violations[:5]
        assert not draft.sessions
