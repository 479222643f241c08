"""The target engine: one thread that batches requests and runs rounds, for the modes ``ar``, ``sd`` and ``ssd``."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ssd_cluster.config import SpeculationSettings, TargetSettings
from ssd_cluster.errors import EngineStopped, SsdClusterError
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.model.runner import ModelRunner
from ssd_cluster.target.admission import Admission
from ssd_cluster.target.laws import LawDesk
from ssd_cluster.target.leases import Leasing
from ssd_cluster.target.pilot import Pilot
from ssd_cluster.target.proposer import LocalFallback, Proposer
from ssd_cluster.target.replica import Connector
from ssd_cluster.target.request import GenerationRequest, Sink
from ssd_cluster.target.round import RoundLoop
from ssd_cluster.target.scheduler import Scheduler
from ssd_cluster.target.sequence import Choice, LiveRequest
from ssd_cluster.target.snapshot import EngineSnapshot, gauge, take_snapshot
from ssd_cluster.target.times import RoundTimes
from ssd_cluster.target.trace import TargetTrace
from ssd_cluster.target.tuning import Tuning
from ssd_cluster.target.verification import Verifier
from ssd_cluster.target.wiring import make_pool
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import FinishReason
from ssd_cluster.verify import rules_for

logger = logging.getLogger(__name__)

_IDLE_S = 0.25
_GAUGE_S = 0.1


class TargetEngine:
    """Serves generation requests with one model.

    Requests come from any thread; sinks are called on the engine's thread and must return at once.

    Args:
        runner: the target model; used by this engine's thread only.
        tokenizer: of the model.
        settings: mode, batch, speculation.
        connectors: how to reach each draft replica; unused in mode ``ar`` and at k = 0.
        leasing: a shared pool of drafts instead of ``connectors``.
        metrics: counters of this engine.
        clock: seconds, monotonic.
        rng: session ids, seeds of requests without one, jitter.
        local: see ``Proposer``; no configuration sets it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        tokenizer: Tokenizer,
        settings: TargetSettings,
        connectors: Sequence[Connector] = (),
        metrics: TargetMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        leasing: Leasing | None = None,
        local: LocalFallback | None = None,
    ) -> None:
        self.metrics = metrics if metrics is not None else TargetMetrics()
        self.times = RoundTimes(trace=TargetTrace.of(settings))
        self._runner = runner
        self._clock = clock
        self._inbox = Inbox(clock)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._progress_at = self._gauge_at = clock()
        self._lock = threading.Lock()
        self._live: dict[str, LiveRequest] = {}
        self._submitted: deque[LiveRequest] = deque()  # the engine's thread takes from it at any time
        self._aborted: deque[str] = deque()
        rng = rng if rng is not None else random.SystemRandom()
        known = tokenizer.vocabulary
        laws = LawDesk(known, runner.config.vocab_size, runner.device, self.metrics)
        self.drafts = make_pool(settings, tokenizer, connectors, leasing, self._inbox, laws, self.metrics, clock, rng)
        self._scheduler = Scheduler(
            runner.pool,
            max_batch=settings.max_batch,
            step_tokens=settings.step_tokens,
            prefill_chunk=settings.prefill_chunk,
            share_prompts=settings.model.prefix_cache,
        )
        self._admission = Admission(runner, tokenizer, settings, self.drafts, rng)
        self._pilot = Pilot(settings, self.drafts, self.metrics, clock, rng)
        rules = rules_for(settings.speculation.kind, settings.speculation.rule.value)
        verifier = Verifier(rules, known, laws, runner.kernels)
        proposer = Proposer(
            settings, self.drafts, self._inbox, self.metrics, self.times, self._pilot, clock, self._stop.is_set, local
        )
        self._rounds = RoundLoop(
            runner,
            self._scheduler,
            self.drafts,
            proposer,
            self._pilot,
            self.metrics,
            self.times,
            verifier,
            clock,
            self._choice_ended,
            self._end_in_error,
        )
        self._tuning = Tuning(settings, known, self._admission, self._pilot, proposer, self.drafts, verifier)

    @property
    def settings(self) -> TargetSettings:
        """In force: what it was started with, and what has been changed since."""
        return self._tuning.settings

    # --- any thread -------------------------------------------------------------------------------------------------

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a request. ``sink`` receives its deltas and, last, its ``Finished``.

        Raises:
            InvalidRequest: the request cannot be served, or its id belongs to a live request.
            ContextTooLong: prompt and max_tokens exceed the context or the KV pool.
            Overloaded: too many choices wait.
            EngineStopped: the engine has failed or is stopping.
        """
        live = self._admission.build(request, sink, self._clock())
        with self._lock:
            if self._failure is not None or self._stop.is_set():
                raise EngineStopped(self._failure or "the engine is shutting down")
            queued = len(self._scheduler.waiting) + sum(len(one.choices) for one in self._submitted.copy())
            self._admission.admit(live, self._live, queued)
            self._live[request.request_id] = live
            self._submitted.append(live)
        self._inbox.wake()

    def abort(self, request_id: str) -> None:
        """End a request; its choices finish with reason ``abort``. Unknown ids are ignored."""
        self._aborted.append(request_id)
        self._inbox.wake()

    def retune(self, speculation: SpeculationSettings) -> None:
        """Speculate by these settings from the next round on, running requests too (``Tuning.ask``)."""
        self._tuning.ask(speculation)
        self._inbox.wake()

    def start(self) -> None:
        """Start the engine's thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="target-engine", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread and every live request, and close the draft links; safe to call twice."""
        self._stop.set()
        self._inbox.wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                logger.error("engine_stop_timeout timeout_s=%.1f", timeout_s)
                return
        self._end_all("the engine is shutting down")
        self.drafts.shut()
        self.times.close()

    def healthy(self) -> bool:
        """True while the engine can serve: not failed or stopped, and in progress if there is work."""
        ended = self._stop.is_set() or not (self._thread is None or self._thread.is_alive())
        failed = (self._failure or self._runner.failure) is not None
        return not (ended or failed) and (not self._live or self._clock() - self._progress_at < self.settings.stall_s)

    def wait_for_draft(self, timeout_s: float) -> bool:
        """Wait until a draft replica is ready; True at once where none is used. For the running engine."""
        deadline = time.monotonic() + timeout_s
        with self.drafts.visiting():
            while self.drafts.usable and not self.drafts.ready:
                if time.monotonic() >= deadline or self._stop.wait(0.01):
                    return False
        return True

    def snapshot(self) -> EngineSnapshot:
        """Counts for health pages and tests."""
        scheduler = self._scheduler
        waiting = len(scheduler.waiting) + len(self._submitted)
        return take_snapshot(self._runner.pool, self.drafts, len(scheduler.running), waiting, len(self._live))

    # --- engine thread ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One turn of the loop: take in submissions, aborts and messages, run a round. For the thread, and for tests.

        Returns:
            True if a forward ran.

        Raises:
            EngineStopped: the engine has failed before.
        """
        if self._failure is not None:
            raise EngineStopped(self._failure)
        try:
            self._take_commands()
            self.drafts.tick()
            self.drafts.receive()
            ran = self._rounds.run()
            self._drop_dead()
        except Exception as error:
            self._fail(error)
            return False
        now = self._progress_at = self._clock()
        if not ran or now >= self._gauge_at:
            self._gauge_at = now + _GAUGE_S
            gauge(self.metrics, self._runner.pool, self.drafts, self._pilot, self._scheduler)
        return ran

    def _run(self) -> None:
        try:
            self._runner.pin()
        except SsdClusterError as error:
            self._fail(error)
            return
        while not self._stop.is_set() and self._failure is None:
            if not self.step():
                self._inbox.wait(_IDLE_S)

    def _take_commands(self) -> None:
        # Aborts are collected first: each follows its submission, which the loop after it then cannot miss.
        aborted = [self._aborted.popleft() for _ in range(len(self._aborted))]
        while self._submitted:
            live = self._submitted.popleft()
            for choice in live.choices:
                self._scheduler.add(choice)
        for request_id in aborted:
            live_or_none = self._live.get(request_id)
            if live_or_none is not None:
                self._abort(live_or_none)
        self._tuning.apply(list(self._live.values()))

    def _abort(self, live: LiveRequest) -> None:
        for choice in list(live.choices):
            if choice.ended:
                continue
            if choice.session is not None:
                self.drafts.close(choice.session)
            live.emit_delta(choice.index, (), choice.output.abandon(), FinishReason.ABORT)
            self._choice_ended(choice, FinishReason.ABORT)

    def _choice_ended(self, choice: Choice, reason: FinishReason) -> None:
        """Free what the choice held; the last one of a request ends the request."""
        choice.ended = True
        self._scheduler.remove(choice)
        self.metrics.finished.labels(reason.value).inc()
        live = choice.live
        live.unfinished -= 1
        if live.unfinished == 0:
            self._retire(live)
            live.emit_finished(self._clock())

    def _retire(self, live: LiveRequest) -> None:
        with self._lock:
            if self._live.get(live.request.request_id) is live:
                del self._live[live.request.request_id]

    def _drop_dead(self) -> None:
        for live in [one for one in self._live.values() if one.dead]:
            self._abort(live)

    def _fail(self, error: Exception) -> None:
        """A bug or a device error: no request can go on."""
        logger.critical("engine_failed error=%r", error, exc_info=error)
        with self._lock:
            self._failure = f"the engine has failed: {type(error).__name__}"
        self._end_all(self._failure)

    def _end_all(self, why: str) -> None:
        with self._lock:
            lives = list(self._live.values())
            self._live.clear()
            self._submitted.clear()
        for live in lives:
            self._end_in_error(live, why)

    def _end_in_error(self, live: LiveRequest, why: str) -> None:
        for choice in live.choices:
            if not choice.ended:
                choice.ended = True
                self._scheduler.remove(choice)
                if choice.session is not None:
                    self.drafts.close(choice.session)
                self.metrics.finished.labels(FinishReason.ERROR.value).inc()
        self._retire(live)
        live.emit_finished(self._clock(), error=why)
