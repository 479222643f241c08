"""The draft engine: one thread that serves the sessions of many targets with one model (speculation.md section 7).

A step: take in what has arrived, start or re-root work, push what is due, run one forward over the rows of all
sessions, push what that completed. Between two forwards is a step boundary: sessions join, leave and change there.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping

import torch

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.calibration import calibrate
from ssd_cluster.draft.leases import LeaseBook
from ssd_cluster.draft.load import LoadReporter
from ssd_cluster.draft.outcomes import OutcomeObserver
from ssd_cluster.draft.post import LawPost
from ssd_cluster.draft.publisher import Publisher
from ssd_cluster.draft.sampler import RowSampler, SamplerFactory
from ssd_cluster.draft.scheduler import Scheduler
from ssd_cluster.draft.service import DraftService
from ssd_cluster.draft.snapshot import DraftSnapshot, take_snapshot
from ssd_cluster.draft.stepper import Stepper
from ssd_cluster.draft.table import SessionTable
from ssd_cluster.draft.timing import StepTimer
from ssd_cluster.errors import EngineStopped
from ssd_cluster.link.limits import MAX_U32
from ssd_cluster.link.messages import Welcome
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import DraftMetrics
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.model.runner import ModelRunner, load_runner
from ssd_cluster.text import Tokenizer

log = logging.getLogger(__name__)

_JOIN_S, _READY_S = 10.0, 60.0
_NOISE_ROUNDS = 4


class DraftEngine:
    """Pre-drafts for the sessions of all targets whose streams feed ``inbox``.

    Args:
        runner: the draft model, loaded with tail slots (``row_credit`` of them) of depth ``k_max``.
        settings: limits and credits.
        inbox: receives (stream, message) pairs of all targets; on the same clock as this engine.
        tokenizer_hash: of the draft's tokenizer; compared at Hello.
        vocabulary: number of ids that the tokenizer knows.
        metrics: counters; a new set if None.
        clock: seconds, monotonic.
        draft_id: name in Welcome; made from the incarnation if None.
        leases: sessions are only opened under one of these; None: no leases are asked for.
        sampler: draws tokens; no configuration sets it.
    """

    def __init__(
        self,
        runner: ModelRunner,
        settings: DraftSettings,
        inbox: Inbox,
        *,
        tokenizer_hash: str,
        vocabulary: int,
        metrics: DraftMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        draft_id: str | None = None,
        leases: LeaseBook | None = None,
        sampler: SamplerFactory = RowSampler,
    ) -> None:
        self._leases = leases
        self.metrics = metrics if metrics is not None else DraftMetrics()
        self.incarnation = secrets.randbits(64)
        self.draft_id = draft_id or f"draft-{self.incarnation:016x}"
        self.timer = StepTimer()
        self._runner = runner
        self._settings = settings
        self._inbox = inbox
        self._tokenizer_hash = tokenizer_hash
        self._vocabulary = vocabulary
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._beat = math.inf
        self._ready = threading.Event()
        scheduler = self._scheduler = Scheduler(settings.max_step_rows, settings.prefill_chunk, settings.target_weights)
        table = self._table = SessionTable(settings, runner.pool, runner.tails, self.metrics, scheduler.weight)
        observer = OutcomeObserver(settings.fanout)
        rows, width = _NOISE_ROUNDS * (settings.k_max + 1), runner.config.vocab_size
        draws = sampler(vocabulary, width, runner.output_ids, runner.device, noise_rows=rows, kernels=runner.kernels)
        self._stepper = Stepper(runner, table, scheduler, observer, draws, self.timer, settings, self.metrics, clock)
        self._post = LawPost(settings.link, runner.device)
        self._service = DraftService(
            table, lambda: self.welcome, draws, observer, self.metrics, settings, self._post, leases
        )
        self._publisher = Publisher(self.metrics, self._table.rest, clock, self._stepper.trace)
        self._load = LoadReporter(self._table, settings, self.timer, self.metrics, leases)

    @property
    def n_sessions(self) -> int:
        """Open sessions."""
        return len(self._table)

    @property
    def draining(self) -> bool:
        """New sessions are refused with DRAINING and targets are told to go elsewhere."""
        return self._service.draining

    def reweigh(self, weights: Mapping[str, float]) -> None:
        """Share credits and rows among targets by these weights from now on; thread-safe."""
        self._scheduler.weights = dict(weights)
        self._inbox.wake()

    def drain(self) -> None:
        """Start draining; thread-safe. Open sessions are served until their targets leave."""
        self._service.draining = True
        if self._leases is not None:
            self._leases.revoke("this draft is draining")
        self._inbox.wake()

    def healthy(self) -> bool:
        """Whether the thread runs and, once it is ready, looked for work within the session TTL; thread-safe."""
        alive = self._thread is not None and self._thread.is_alive() and self._failure is None
        return alive and time.monotonic() - self._beat < self._settings.link.session_ttl_s

    def snapshot(self) -> DraftSnapshot:
        """What is open, free and asked for; thread-safe."""
        return take_snapshot(self._runner, self._settings, self._table, self._load, self._leases, self.draining)

    @property
    def welcome(self) -> Welcome:
        """What this draft says of itself to a target, with the step time as measured so far."""
        limits = self._settings.limits
        return Welcome(
            draft_id=self.draft_id,
            incarnation=self.incarnation,
            model_hash=self._runner.model_hash,
            tokenizer_hash=self._tokenizer_hash,
            vocabulary=self._vocabulary,
            k_max=self._settings.k_max,
            max_context=self._runner.max_context,
            row_credit=min(self._settings.row_credit, limits.rows or MAX_U32),
            session_credit=min(self._settings.session_credit, limits.sessions or MAX_U32),
            step_time=self.timer.model,
            session_ttl_s=self._settings.link.session_ttl_s,
            trust_domain=self._settings.trust_domain or "",
        )

    @torch.inference_mode()
    def step(self) -> bool:
        """Take in messages, run at most one forward, push what is due; False if there was nothing to do."""
        now = self._clock()
        received = self._inbox.drain_timed()
        for stream, message, arrived in received:
            self._service.handle(stream, message, arrived)
        self._begin_rounds(now)
        pulled, self._service.pulled = list(self._service.pulled), {}
        self._publisher.publish(pulled, now, force=True)
        grants = self._stepper.plan(now)
        self._load.peaks.note(messages=len(received), rows=self._stepper.wanted)
        if grants:
            # Nothing can leave before the forward ends: what falls due until then leaves now.
            ahead = self.timer.predict(sum(rows for _, rows in grants))
            self._publisher.publish(list(self._table.active), now + ahead)
            working = list(self._table.active)
            self._stepper.run(grants, now)
            now = self._clock()
            self._publisher.publish(working, now)
        self._load.report(now, draining=self._service.draining)
        return bool(received or grants)

    def _begin_rounds(self, now: float) -> None:
        """Start or re-root the work of sessions with a new round; several queued commits lead to one start."""
        renewed, self._service.renewed = list(self._service.renewed), {}
        for session in renewed:
            if session.ended:
                continue
            self._load.superseded(session)
            build = session.next_build()
            if session.pages is not None:
                session.pages.settle(session.tokens)
            session.sampling.discard_below(session.base_len)
            self._table.set_build(session, build)
        # A chain may be complete already: the work of the round before went the right way.
        self._publisher.publish(renewed, now)

    @torch.inference_mode()
    def prefetch(self) -> bool:
        """With nothing to run: draw one noise row that the next round will want; False if all are there."""
        now = self._clock()
        for session in self._table.sessions():
            if now - session.renewed_s < self._settings.idle_s and session.sampling.prefetch(session.horizon):
                return True
        return False

    def calibrate(self) -> None:
        """Measure the step time; needs free pages and tail slots, so call it before the first session opens."""
        calibrate(self._runner, self.timer, self._settings, self._clock)

    def start(self, timeout_s: float = _READY_S) -> None:
        """Run in a thread of its own, pinned to the model's cores; returns once the step time is measured.

        Raises:
            EngineStopped: it was started before, failed, or is not ready by the deadline.
        """
        if self._thread is not None:
            raise EngineStopped("this draft engine was started before")
        self._thread = threading.Thread(target=self._main, name=self.draft_id, daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout_s):
            raise EngineStopped(f"the draft engine was not ready within {timeout_s:g} s")
        if self._failure is not None:
            raise EngineStopped(f"the draft engine could not start: {self._failure}") from self._failure

    def stop(self, timeout_s: float = _JOIN_S) -> bool:
        """Stop the thread and free all sessions; streams are closed. False if the thread did not end in time."""
        self._stop.set()
        self._inbox.wake()
        if self._thread is None:
            self._close("the draft stops")
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            self._runner.pin()
            self.calibrate()
            self._beat = time.monotonic()
            self._ready.set()
            self.run(self._stop)
        except BaseException as error:
            # A draft never takes a target down: its streams end, and targets go on without it.
            self._failure = error
            self._ready.set()
            log.exception("draft engine failed draft=%s", self.draft_id)
            self._close("the draft failed")
            self._turn_away()
        else:
            self._close("the draft stops")

    def run(self, stop: threading.Event) -> None:
        """Step until ``stop`` is set; sleeps on the inbox while there is nothing to run."""
        while not stop.is_set():
            self._beat = time.monotonic()
            if not self.step() and not self.prefetch():
                self._inbox.wait(self._load.next_in(self._clock()))

    def _close(self, reason: str) -> None:
        for peer in list(self._table.peers.values()):
            self._table.clear(peer)
            peer.stream.close(reason)
        self._table.peers.clear()
        for stream, _ in self._inbox.drain():
            stream.close(reason)
        self._post.close()
        if self._stepper.trace is not None:
            self._stepper.trace.close()

    def _turn_away(self) -> None:
        """After a failure: end every stream that still shows up, until the engine is stopped."""
        while not self._stop.is_set():
            self._inbox.wait(self._settings.load_interval_s)
            for stream, _ in self._inbox.drain():
                stream.close("the draft failed")


def load_draft(
    settings: DraftSettings,
    inbox: Inbox,
    metrics: DraftMetrics | None = None,
    leases: LeaseBook | None = None,
    sampler: SamplerFactory = RowSampler,
) -> DraftEngine:
    """Load the draft model and its tokenizer, and make the engine that serves them; ``start`` runs it.

    Raises:
        CheckpointError: the checkpoint is missing, broken or not supported.
        ConfigError: device, context or KV size do not fit the model.
    """
    tokenizer = Tokenizer.load(resolve_checkpoint(settings.model.path))
    runner = load_runner(settings.model, tail_slots=settings.row_credit, tail_depth=settings.k_max)
    return DraftEngine(
        runner,
        settings,
        inbox,
        tokenizer_hash=tokenizer.hash,
        vocabulary=tokenizer.vocabulary,
        metrics=metrics,
        leases=leases,
        sampler=sampler,
    )
