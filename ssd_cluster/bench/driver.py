"""Runs a workload on an engine in this process: a closed loop of at most ``batch`` requests."""

from __future__ import annotations

import queue
import time
import zlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ssd_cluster.bench.handle import PlannedRounds, RequestRecord, RunRecord, Workload
from ssd_cluster.errors import EngineStopped
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.request import Delta, Event, Finished, GenerationRequest, Sink
from ssd_cluster.target.times import RoundTimes

_PHASE_NAMES = {"forward": "target_forward"}


class Engine(Protocol):
    """The part of ``TargetEngine`` that is measured."""

    @property
    def times(self) -> RoundTimes: ...

    def submit(self, request: GenerationRequest, sink: Sink) -> None: ...


@dataclass(slots=True)
class _Pending:
    """One request on its way; the engine thread writes, the driver reads once it is finished."""

    submitted_s: float = 0.0
    first_token_s: float = 0.0
    finished_s: float = 0.0
    tokens: array[int] = field(default_factory=lambda: array("q"))
    finished: Finished | None = None


class Driver:
    """Drives one engine.

    Args:
        engine: started; idle whenever ``run`` is called.
        encode: prompt text and ``raw`` -> token ids.
        stall_s: longest time without a new token before the run is given up.
        poll_s: how often to look.
        progress: called every ``poll_s`` with the tokens emitted so far.
    """

    def __init__(
        self,
        engine: Engine,
        encode: Callable[[str, bool], list[int]],
        *,
        stall_s: float = 120.0,
        poll_s: float = 1.0,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> None:
        self._engine = engine
        self._encode = encode
        self._stall_s = stall_s
        self._poll_s = poll_s
        self._progress = progress
        self._runs = 0

    def run(self, workload: Workload) -> RunRecord:
        """Answer every prompt of the workload.

        Raises:
            EngineStopped: a request failed, or no token came for ``stall_s``.
            InvalidRequest: a prompt does not fit the model.
        """
        self._runs += 1
        requests = [self._request(workload, index) for index in range(len(workload.prompts))]
        pending = [_Pending() for _ in requests]
        done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._engine.times.reset()
        for index in range(min(workload.batch, len(requests))):
            self._submit(requests[index], pending[index], index, done)
        following, finished = workload.batch, 0
        while finished < len(requests):
            self._await(done, pending)
            finished += 1
            if following < len(requests):
                self._submit(requests[following], pending[following], following, done)
            following += 1
        return self._record(requests, pending, workload.keep_text)

    def _request(self, workload: Workload, index: int) -> GenerationRequest:
        params = SamplingParams(
            temperature=workload.temperature,
            top_p=workload.top_p,
            top_k=workload.top_k,
            seed=workload.seed + index,
            max_tokens=workload.max_tokens,
            ignore_eos=workload.ignore_eos,
        )
        ids = tuple(self._encode(workload.prompts[index], workload.raw))
        return GenerationRequest(f"bench-{self._runs}-{index}", ids, params)

    def _submit(self, request: GenerationRequest, pending: _Pending, index: int, done: queue.SimpleQueue[int]) -> None:
        def sink(event: Event) -> None:
            if isinstance(event, Delta):
                if event.token_ids and not pending.tokens:
                    pending.first_token_s = time.perf_counter()
                pending.tokens.extend(event.token_ids)
            else:
                pending.finished_s = time.perf_counter()
                pending.finished = event
                done.put(index)

        pending.submitted_s = time.perf_counter()
        self._engine.submit(request, sink)

    def _await(self, done: queue.SimpleQueue[int], pending: list[_Pending]) -> None:
        """Wait for the next request to finish, reporting progress meanwhile."""
        seen, deadline = -1, time.monotonic() + self._stall_s
        while True:
            try:
                index = done.get(timeout=self._poll_s)
            except queue.Empty:
                tokens = sum(len(request.tokens) for request in pending)
                self._progress(tokens)
                now = time.monotonic()
                if tokens > seen:
                    seen, deadline = tokens, now + self._stall_s
                elif now > deadline:
                    raise EngineStopped(f"the engine emitted no token for {self._stall_s:.0f} s") from None
                continue
            finished = pending[index].finished
            if finished is not None and finished.error is not None:
                raise EngineStopped(f"prompt {index} failed: {finished.error}")
            return

    def _record(self, requests: list[GenerationRequest], pending: list[_Pending], keep_text: bool) -> RunRecord:
        times = self._engine.times
        prompts = [request.prompt_token_ids if keep_text else None for request in requests]
        return RunRecord(
            requests=tuple(_request_record(one, prompt) for one, prompt in zip(pending, prompts, strict=True)),
            rounds=times.rounds,
            phase_s=_named(times.seconds),
            hit_path_s=tuple(times.hit_path),
            hit_round_s=tuple(times.hit_rounds),
            plans=tuple(
                PlannedRounds(k=k, rows=rows, wait=wait, rounds=n) for (k, rows, wait), n in list(times.plans.items())
            ),
        )


def _request_record(request: _Pending, prompt: tuple[int, ...] | None) -> RequestRecord:
    """``prompt``: its ids, if the text is to be kept."""
    finished = request.finished
    if finished is None:
        raise EngineStopped("a request has not finished")
    stats = finished.speculation
    return RequestRecord(
        first_token_s=request.first_token_s,
        finished_s=request.finished_s,
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        spec_steps=stats.num_spec_steps,
        draft_tokens=stats.num_draft_tokens,
        accepted_tokens=stats.num_accepted_draft_tokens,
        cache_hits=stats.cache_hits,
        cache_misses=stats.cache_misses,
        output_crc=zlib.crc32(request.tokens.tobytes()),
        submitted_s=request.submitted_s,
        text=None if prompt is None else (tuple(prompt), tuple(request.tokens)),
    )


def _named(seconds: Mapping[str, float]) -> dict[str, float]:
    return {_PHASE_NAMES.get(phase, phase): value for phase, value in seconds.items()}
