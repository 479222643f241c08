"""The runner without a model: the real target engine on it says what was recorded and takes the time it was given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from support.target_rig import Client, Rig, assert_clean, request, run, submit
from support.tiny import make_checkpoint

from ssd_cluster.bench.pool.outcomes import Text
from ssd_cluster.bench.pool.replay import Recall, ReplayRunner
from ssd_cluster.bench.simulator.times import StepTime
from ssd_cluster.config import ModelSettings, TargetSettings
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.types import Mode


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig.load(make_checkpoint(tmp_path_factory.mktemp("replay") / "tiny"))


class Bed:
    """A sleep that takes no time, and how long it was asked for."""

    def __init__(self) -> None:
        self.now = 50.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def replaying(rig: Rig, texts: Iterable[Text], bed: Bed, blocks: int = 64, **settings: object) -> TargetEngine:
    model = rig.model.model_copy(update={"kv_tokens": blocks * 8})
    times = StepTime.parse("1:10/101:110")
    runner = ReplayRunner(model, rig.runner.config, Recall(texts), times, lambda: bed.now, bed.sleep)
    return TargetEngine(runner, rig.tokenizer, TargetSettings(model=model, mode=Mode.AR, **settings))  # type: ignore[arg-type]


def texts_of(clients: Iterable[Client]) -> list[Text]:
    return [Text(client.request.prompt_token_ids, tuple(client.tokens[0]), 0) for client in clients]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_engine_says_what_was_recorded(rig: Rig, temperature: float) -> None:
    """With prompts in chunks, shared pages, and too few of them for all, so that sequences are preempted."""
    requests = [
        request(
            f"r{i}", [5 + j % 280 for j in range(3 + i, 33 + 2 * i)], temperature=temperature, max_tokens=30, seed=i
        )
        for i in range(6)
    ]
    recorded = run(rig.engine(Mode.AR), requests)
    bed = Bed()
    engine = replaying(rig, texts_of(recorded), bed, blocks=24, prefill_chunk=16)
    for client, original in zip(run(engine, requests), recorded, strict=True):
        assert client.tokens == original.tokens
        assert client.choices[0].text == original.choices[0].text
        assert client.choices[0].reason == original.choices[0].reason
    engine.step()  # with nothing to do: counters are brought up to date
    assert engine.metrics.registry.get_sample_value("vllm:num_preemptions_total")
    assert_clean(engine)
    engine.stop()


def test_a_forward_takes_the_time_that_its_tokens_cost(rig: Rig) -> None:
    bed = Bed()
    text = Text((5, 6, 7), (8, 9, 10, 11), 0)
    engine = replaying(rig, [text], bed)
    (client,) = run(engine, [request("a", text.prompt, temperature=0, max_tokens=4)])
    assert client.tokens == [[8, 9, 10, 11]]
    assert bed.slept == pytest.approx([0.012, 0.010, 0.010, 0.010])
    engine.stop()


def test_logits_follow_the_text_also_behind_proposals(rig: Rig) -> None:
    bed = Bed()
    model = rig.model.model_copy(update={"kv_tokens": 64})
    recall = Recall([Text((5, 6, 7), (8, 9, 10, 11), 0)])
    runner = ReplayRunner(model, rig.runner.config, recall, StepTime.parse("1"), lambda: bed.now, bed.sleep)
    table = runner.pool.allocate(2)
    logits = runner.forward(ForwardBatch([CausalSpan([5, 6, 7, 8, 200, 201], 0, table, 2)]))
    assert logits.argmax(1).tolist()[:2] == [8, 9]
    again = runner.forward(ForwardBatch([CausalSpan([9, 10], 4, table)]))
    assert again.argmax(1).tolist() == [10, 11]
    assert int((again != 0).sum()) == 2, "what the forward before was certain of is forgotten"
    with pytest.raises(ValueError, match="causal"):
        runner.forward(ForwardBatch([TreeSpan([1], table, [1], [0], [0])]))


def test_leaving_the_text_is_noticed(rig: Rig) -> None:
    recall = Recall([Text((5, 6), (7, 8), 0), Text((5, 6, 9), (10,), 0)])
    assert recall.text(np.array([5, 6, 7])).tolist() == [5, 6, 7, 8]
    assert recall.text(np.array([5, 6, 9])).tolist() == [5, 6, 9, 10]
    for context in ([5, 7], [5, 6, 8], [5, 6, 7, 8]):
        with pytest.raises(ValueError, match="follows no recorded text"):
            recall.text(np.array(context))
    engine = replaying(rig, [Text((5, 6, 7), (8, 9), 0)], Bed())
    (client,) = submit(engine, [request("a", (5, 6, 8), max_tokens=2)])
    while engine.step():
        pass
    assert client.finished is not None
    assert "ValueError" in (client.finished.error or "")
    engine.stop()


def test_a_server_takes_no_outcomes_for_a_model(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.json"
    file.write_text('{"settings": {}, "records": {}}')
    with pytest.raises(CheckpointError):
        resolve_checkpoint(ModelSettings(path=str(file)).path)
