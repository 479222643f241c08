"""The controller inside the target engine: a scripted draft, a real tiny model, and a clock that only forwards move."""

from __future__ import annotations

import pytest
from support.scripted_draft import SCRIPTS, Garbage, Script, ScriptedDraft, Truth
from support.target_rig import Client, Rig, assert_clean, connect, drain, learn, request, run, submit

from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.speculation.controller import Stage
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import Mode

TOKENS = 110
PER_TOKEN = 0.05


class Clock:
    """Seconds that pass in forwards and in waits only."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now

    def run(self, batch: ForwardBatch) -> None:
        self.now += 0.030 * (1 + PER_TOKEN * (sum(len(span.tokens) for span in batch.spans) - 1))

    def wait(self, engine: TargetEngine, timeout_s: float) -> bool:
        arrived = bool(engine._inbox._items)
        if not arrived:
            self.now += max(0.0, timeout_s) + 1e-6
        return arrived


@pytest.fixture
def clock(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, forward = Clock(), rig.runner.forward

    def timed(batch: ForwardBatch) -> object:
        clock.run(batch)
        return forward(batch)

    monkeypatch.setattr(rig.runner, "forward", timed)
    return clock


def prompts(n: int) -> list[GenerationRequest]:
    return [
        request(f"r{i}", range(5 + 3 * i, 30 + 3 * i), temperature=i % 2, seed=100 + i, max_tokens=TOKENS)
        for i in range(n)
    ]


def plain(rig: Rig, clock: Clock, requests: list[GenerationRequest], batch: int) -> tuple[list[Client], float]:
    engine = rig.engine(Mode.AR, clock=clock, max_batch=batch)
    began = clock.now
    clients = in_batches(engine, requests, batch)
    return clients, clock.now - began


def in_batches(engine: TargetEngine, requests: list[GenerationRequest], batch: int) -> list[Client]:
    clients: list[Client] = []
    for first in range(0, len(requests), batch):
        clients += run(engine, requests[first : first + batch])
    return clients


def controlled(
    rig: Rig, clock: Clock, draft: ScriptedDraft, monkeypatch: pytest.MonkeyPatch, batch: int
) -> TargetEngine:
    speculation = {"controller": "on", "wait_ms": 60.0}
    engine = rig.engine(Mode.SSD, [draft.connect], clock=clock, max_batch=batch, speculation=speculation)
    monkeypatch.setattr(engine._inbox, "wait", lambda timeout_s: clock.wait(engine, timeout_s))
    connect(engine)
    return engine


@pytest.mark.parametrize("batch", [1, 6])
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_no_draft_costs_more_than_a_twentieth_and_none_changes_the_text(
    rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch, name: str, batch: int
) -> None:
    requests = prompts(max(3, batch))
    said, plain_s = plain(rig, clock, requests, batch)
    truth = Truth()
    learn(truth, said)
    draft = ScriptedDraft(SCRIPTS[name](truth, 3))
    engine = controlled(rig, clock, draft, monkeypatch, batch)
    began = clock.now
    clients = in_batches(engine, requests, batch)
    assert [client.tokens for client in clients] == [client.tokens for client in said]
    assert clock.now - began <= 1.05 * plain_s
    assert_clean(engine, draft)


def test_a_good_draft_is_used(rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = prompts(4)
    said, plain_s = plain(rig, clock, requests, 1)
    truth = Truth()
    learn(truth, said)
    engine = controlled(rig, clock, ScriptedDraft(Script(truth)), monkeypatch, 1)
    began = clock.now
    in_batches(engine, requests, 1)
    assert engine._pilot.controller is not None
    assert engine._pilot.controller.stage is Stage.ON
    assert clock.now - began < 0.5 * plain_s
    engine._pilot.gauge()
    sample = engine.metrics.registry.get_sample_value
    assert sample("ssd:speculating") == 1
    assert sample("ssd:planned_k") == engine._pilot.controller.plan.k > 0
    assert sample("ssd:probes_total", {"result": "good"}) == 1
    speeds = [sample("ssd:predicted_tokens_per_second", {"of": of}) or 0.0 for of in ("plan", "plain")]
    assert speeds[0] > 1.5 * speeds[1] > 0


def test_without_speculation_no_session_is_open(rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage draft is left after a bounded number of proposals; then the target is plain to the last token."""
    draft = ScriptedDraft(Garbage(Truth()))
    engine = controlled(rig, clock, draft, monkeypatch, 1)
    run(engine, prompts(1))
    assert engine._pilot.controller is not None
    assert engine._pilot.controller.stage is Stage.PLAIN
    opened = engine.metrics.registry.get_sample_value("ssd:probes_total", {"result": "bad"})
    assert opened is None or opened <= 1
    received = len(draft.received)
    client = submit(engine, prompts(2)[1:])[0]
    while len(client.choices[0].token_ids) < 40:
        engine.step()
        assert not any(engine.snapshot().sessions.values())
        choice = next(iter(engine._live.values())).choices[0]
        assert not choice.proposal.tokens
    assert len(draft.received) == received
    drain(engine)


def test_a_fixed_k_always_speculates(rig: Rig, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = ScriptedDraft(Garbage(Truth()))
    speculation = {"controller": {"fixed": ["k"]}, "k": 3, "wait_ms": 60.0}
    engine = rig.engine(Mode.SSD, [draft.connect], clock=clock, speculation=speculation)
    monkeypatch.setattr(engine._inbox, "wait", lambda timeout_s: clock.wait(engine, timeout_s))
    connect(engine)
    run(engine, prompts(2))
    assert engine._pilot.plan is not None
    assert engine._pilot.plan.k == 3
    assert_clean(engine)
