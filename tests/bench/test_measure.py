"""The measuring loop on recorded runs, and the driver on an engine that follows a script."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from ssd_cluster.bench.driver import Driver
from ssd_cluster.bench.handle import RequestRecord, RunRecord, Workload
from ssd_cluster.bench.measure import measure
from ssd_cluster.errors import EngineStopped
from ssd_cluster.target.request import Delta, Finished, GenerationRequest, Sink, SpeculationStats
from ssd_cluster.target.times import PHASES, RoundTimes
from ssd_cluster.types import FinishReason, Mode


class Recorded:
    """An engine handle that answers at a fixed speed and logs who ran what."""

    def __init__(self, mode: Mode, seconds: float, log: list[tuple[Mode, int]]) -> None:
        self.mode, self.name, self._seconds, self._log = mode, mode.value, seconds, log

    def run(self, workload: Workload) -> RunRecord:
        self._log.append((self.mode, len(workload.prompts)))
        crc = self.mode is Mode.SSD
        requests = tuple(
            RequestRecord(
                first_token_s=i, finished_s=i + self._seconds, prompt_tokens=1, completion_tokens=11, output_crc=crc
            )
            for i, _ in enumerate(workload.prompts)
        )
        return RunRecord(requests=requests, rounds=10, phase_s={})

    def close(self) -> None:
        raise AssertionError("engines are closed by who started them")


def test_modes_alternate_and_rotate_after_a_warm_up() -> None:
    log: list[tuple[Mode, int]] = []
    engines = [Recorded(Mode.AR, 0.5, log), Recorded(Mode.SD, 0.25, log), Recorded(Mode.SSD, 0.2, log)]
    lines: list[str] = []
    measured = measure(engines, Workload(prompts=("a", "b", "c"), max_tokens=11, batch=2), 4, lines.append)
    ar, sd, ssd = Mode.AR, Mode.SD, Mode.SSD
    assert log[:3] == [(ar, 2), (sd, 2), (ssd, 2)], "one batch each, not counted"
    assert [mode for mode, n in log[3:] if n == 3] == [ar, sd, ssd, sd, ssd, ar, ssd, ar, sd, ar, sd, ssd]
    assert len(lines) == 12
    assert [round(result.tokens_per_s.median) for result in measured.results] == [20, 40, 50]
    assert measured.different_outputs == {ar: 0, sd: 0, ssd: 3}


class Scripted:
    """Answers on a thread of its own; keeps count of how many requests it had at once."""

    def __init__(self, answer: Callable[[GenerationRequest, Sink], None]) -> None:
        self.times = RoundTimes()
        self.requests: list[GenerationRequest] = []
        self.running = self.most = 0
        self._answer = answer
        self._lock = threading.Lock()

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        with self._lock:
            self.requests.append(request)
            self.running += 1
            self.most = max(self.most, self.running)
        threading.Thread(target=self._run, args=(request, sink), daemon=True).start()

    def _run(self, request: GenerationRequest, sink: Sink) -> None:
        self._answer(request, lambda event: self._leave(event, sink))

    def _leave(self, event: Delta | Finished, sink: Sink) -> None:
        if isinstance(event, Finished):
            with self._lock:
                self.running -= 1
        sink(event)


def finished(request: GenerationRequest, tokens: int, error: str | None = None) -> Finished:
    stats = SpeculationStats(
        num_spec_steps=2, num_draft_tokens=6, num_accepted_draft_tokens=3, cache_hits=1, cache_misses=1
    )
    return Finished(request.request_id, len(request.prompt_token_ids), tokens, 0, stats, 0.1, 0.2, error)


def in_bursts(request: GenerationRequest, sink: Sink) -> None:
    """Five tokens in three deltas, an empty one among them."""
    sink(Delta(request.request_id, 0, (), ""))
    sink(Delta(request.request_id, 0, (7,), "a"))
    sink(Delta(request.request_id, 0, (8, 9, 10, 11), "b", FinishReason.STOP))
    sink(finished(request, 5))


def test_driver_keeps_the_batch_full_and_takes_counts_from_usage() -> None:
    barrier = threading.Barrier(3)

    def answer(request: GenerationRequest, sink: Sink) -> None:
        if request.request_id[-1] in "012":
            barrier.wait(10)
        in_bursts(request, sink)

    engine = Scripted(answer)
    engine.times.add(dict.fromkeys(PHASES, 1.0), 3)
    driver = Driver(engine, lambda prompt, raw: [len(prompt), int(raw)])
    workload = Workload(prompts=("a", "bb", "ccc", "dddd"), max_tokens=9, temperature=0.5, seed=40, batch=3, raw=True)
    record = driver.run(workload)
    assert engine.most == 3
    assert [r.prompt_token_ids for r in sorted(engine.requests, key=lambda r: r.request_id)] == [
        (1, 1), (2, 1), (3, 1), (4, 1),
    ]  # fmt: skip
    assert sorted(r.params.seed for r in engine.requests) == [40, 41, 42, 43]
    assert {(r.params.temperature, r.params.max_tokens) for r in engine.requests} == {(0.5, 9)}
    assert [(r.prompt_tokens, r.completion_tokens) for r in record.requests] == [(2, 5)] * 4
    assert [(r.spec_steps, r.draft_tokens, r.accepted_tokens) for r in record.requests] == [(2, 6, 3)] * 4
    assert len({r.output_crc for r in record.requests}) == 1
    assert all(0 < r.first_token_s <= r.finished_s for r in record.requests)
    assert record.rounds == 0, "what the engine did before the run is not counted"
    assert set(record.phase_s) == {
        "target_forward", "noise", "process", "verify", "draft_wait", "link", "other",
    }  # fmt: skip


def test_request_ids_are_new_in_every_run() -> None:
    engine = Scripted(in_bursts)
    driver = Driver(engine, lambda prompt, raw: [1])
    for _ in range(2):
        driver.run(Workload(prompts=("a", "b"), max_tokens=9))
    assert len({request.request_id for request in engine.requests}) == 4


def test_a_failed_request_ends_the_run() -> None:
    def answer(request: GenerationRequest, sink: Sink) -> None:
        sink(finished(request, 0, error="out of luck"))

    with pytest.raises(EngineStopped, match="prompt 0 failed: out of luck"):
        Driver(Scripted(answer), lambda prompt, raw: [1]).run(Workload(prompts=("a",), max_tokens=9))


def test_an_engine_that_hangs_ends_the_run() -> None:
    def answer(request: GenerationRequest, sink: Sink) -> None:
        sink(Delta(request.request_id, 0, (7,), "a"))

    heard: list[int] = []
    driver = Driver(Scripted(answer), lambda prompt, raw: [1], stall_s=0.01, poll_s=0.005, progress=heard.append)
    with pytest.raises(EngineStopped, match="no token"):
        driver.run(Workload(prompts=("a",), max_tokens=9))
    assert heard
    assert set(heard) <= {0, 1}
