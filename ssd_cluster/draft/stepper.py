"""One forward over the rows of many sessions: what they run, how it is laid out, and where the drawn tokens go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.builds import BranchBuild, ChainBuild, TreeBuild
from ssd_cluster.draft.laws import LawRow
from ssd_cluster.draft.outcomes import OutcomeObserver
from ssd_cluster.draft.pages import SessionPages
from ssd_cluster.draft.sampler import DrawRow, RowSampler
from ssd_cluster.draft.scheduler import Demand, RowKind, Scheduler
from ssd_cluster.draft.session import Session
from ssd_cluster.draft.table import SessionTable
from ssd_cluster.draft.timing import StepTimer
from ssd_cluster.draft.trace import DraftTrace
from ssd_cluster.metrics import DraftMetrics
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.runner import ModelRunner

Grants = list[tuple[Demand[Session], int]]


@dataclass(slots=True)
class _Run:
    """One session's part of a forward: its span, the rows it reads, and the branches behind tree rows."""

    session: Session
    span: CausalSpan | TreeSpan
    rows: list[DrawRow]
    kind: str
    branches: list[BranchBuild]


class Stepper:
    """Plans and runs forwards.

    Args:
        runner: the draft model.
        table: sessions; ``table.active`` are those with something to run.
        scheduler: grants rows.
        observer: plans trees.
        sampler: draws tokens.
        timer: learns what forwards cost.
        settings: limits.
        metrics: counters.
        clock: seconds, monotonic.

    Attributes:
        trace: where forwards are recorded; None: nowhere.
        wanted: rows that the newest plan had to choose from.
    """

    def __init__(
        self,
        runner: ModelRunner,
        table: SessionTable,
        scheduler: Scheduler,
        observer: OutcomeObserver,
        sampler: RowSampler,
        timer: StepTimer,
        settings: DraftSettings,
        metrics: DraftMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._runner = runner
        self._table = table
        self._scheduler = scheduler
        self._observer = observer
        self._sampler = sampler
        self._timer = timer
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self.trace = DraftTrace.of(settings)
        self.wanted = 0

    def plan(self, now: float) -> Grants:
        """Who runs next, and how many rows; empty if there is nothing to run."""
        waiting = self._awaiting_prefix()
        demands = [self._demand(s, now) for s in self._table.active if s not in waiting]
        self.wanted = sum(demand.rows for demand in demands)
        grants = self._scheduler.grant(demands)
        if len(grants) < len(self._table.active):
            granted = {demand.session for demand, _ in grants}
            for session in self._table.active:
                if session not in granted and session.build is not None:
                    session.build.passed_over = True
        return grants

    def _awaiting_prefix(self) -> set[Session]:
        """Sessions that have not begun and whose prompt another one is running: its pages will be shared."""
        size = self._runner.pool.block_size
        fresh = [s for s in self._table.active if s.pages is None and s.base_len > size]
        if not fresh:
            return set()
        running = {s.cacheable(size) for s in self._table.active if s.pages is not None and s.backlog > size}
        waiting = set()
        for session in fresh:
            prefix = session.cacheable(size)
            if prefix in running:
                waiting.add(session)
            running.add(prefix)
        return waiting

    def _demand(self, session: Session, now: float) -> Demand[Session]:
        build, target = session.build, session.peer.target_id
        if isinstance(build, TreeBuild) and build.branches is not None:
            late = build.due_s < now and build.pushed is not None
            return Demand(session, target, RowKind.TREE, len(build.live), 1, build.due_s, late)
        if isinstance(build, ChainBuild) and build.glued:
            return Demand(session, target, RowKind.JIT, 1, 1, build.deadline_s)
        if build is None:
            return Demand(session, target, RowKind.PREFILL, session.backlog, 1, session.renewed_s)
        pending = session.backlog + 1 + len(session.glue_proposal())
        if pending > self._table.short_span:
            return Demand(session, target, RowKind.PREFILL, pending, 1, session.renewed_s)
        if isinstance(build, ChainBuild):
            return Demand(session, target, RowKind.JIT, pending, pending, build.deadline_s)
        return Demand(session, target, RowKind.TREE, pending, pending, build.due_s)

    def run(self, grants: Grants, now: float) -> None:
        """Run one forward and hand its rows out; sessions for which there are no pages are refused."""
        runs = [run for demand, rows in grants if (run := self._prepare(demand.session, rows, now)) is not None]
        # Making room for a later session never takes pages of one that runs: only idle sessions give way.
        if not runs:
            return
        batch = ForwardBatch([run.span for run in runs])
        started = self._clock()
        logits = self._runner.forward(batch)
        drawn = self._sampler.draw(logits, [row for run in runs for row in run.rows])
        seconds = self._clock() - started  # a device may only be done once the draws are read
        self._timer.observe(batch.n_tokens, seconds)
        self._metrics.steps.inc()
        self._metrics.step_seconds.inc(seconds)
        if self.trace is not None:
            spans = [(run.session.id, run.kind, len(run.span.tokens)) for run in runs]
            self.trace.step(started, started + seconds, batch.n_tokens, spans)
        at = 0
        for run in runs:
            self._metrics.row_steps.labels(run.kind).inc(len(run.span.tokens))
            rows = slice(at, at + len(run.rows))
            self._apply(run, drawn.ids[rows], drawn.laws[rows], drawn.guesses[rows])
            at += len(run.rows)

    def _prepare(self, session: Session, rows: int, now: float) -> _Run | None:
        build, pages = session.build, session.pages
        if isinstance(build, TreeBuild) and build.branches is not None and pages is not None:
            return _tree_run(session, build, pages, rows)
        if pages is None:
            pages = session.pages = SessionPages(self._runner.pool, session.tokens)
        if isinstance(build, ChainBuild) and build.glued:
            start, tokens = build.base_len + len(build.tokens) - 1, build.tokens[-1:]
        else:
            start = session.valid
            tokens = [*session.tokens[start:], *session.glue_proposal()]
            if build is None or rows < len(tokens):  # prefill: never the last committed token, which the glue needs
                tokens = tokens[: min(rows, session.backlog)]
        end = start + len(tokens)
        if not self._table.ensure(session, pages, end, now):
            return None
        span = CausalSpan(tokens, start, pages.table, len(tokens))
        if end < session.base_len or build is None:
            return _Run(session, span, [], "prefill", [])
        if isinstance(build, ChainBuild):
            span.logits_from = len(tokens) - 1
            row = DrawRow(session.sampling, end, round_word=build.ratio_round, committed=session.tokens)
            return _Run(session, span, [row], "jit", [])
        span.logits_from = session.base_len - 1 - start
        return _Run(session, span, _guess_rows(session, build, span.n_logits), "glue", [])

    def _apply(self, run: _Run, ids: list[int], laws: list[LawRow | None], guesses: list[list[int]]) -> None:
        session, build = run.session, run.session.build
        if isinstance(run.span, TreeSpan):
            if isinstance(build, TreeBuild):
                grown = zip(run.branches, ids, laws, strict=True)
                self._table.free_tails([branch for branch, token, law in grown if build.grow(branch, token, law)])
        elif session.pages is not None:
            session.pages.wrote(run.span.start, run.span.tokens)
            session.pages.settle(session.tokens)
            if run.rows and isinstance(build, ChainBuild):
                build.glued = True
                build.extend(ids, laws)
            elif run.rows and isinstance(build, TreeBuild):
                self._plant(session, build, guesses)
        if build.done if build is not None else session.backlog == 0:
            self._table.active.pop(session, None)

    def _plant(self, session: Session, build: TreeBuild, candidates: list[list[int]]) -> None:
        """Choose the branches of a tree from the candidates of its kept lengths."""
        build.guesses = candidates
        build.start(self._observer.plan(session, build, self._table.row_allowance(session, build)))
        got = self._table.take_tails(build.live)
        without = build.live[got:]
        if without and build.branches is not None:
            build.live = build.live[:got]
            build.branches = [branch for branch in build.branches if branch not in without]


def _guess_rows(session: Session, build: TreeBuild, n_rows: int) -> list[DrawRow]:
    """Rows that guess t* after k = 0..n_rows - 1 kept tokens: neither the rejected draft token nor a stop id."""
    rows = []
    for k in range(n_rows):
        rejected = build.proposal[k : k + 1]
        exclude = session.stop_ids.union(rejected) if rejected else session.stop_ids
        rows.append(DrawRow(session.sampling, build.base_len + k, build.rows, exclude, committed=session.tokens))
    return rows


def _tree_run(session: Session, build: TreeBuild, pages: SessionPages, rows: int) -> _Run:
    branches = build.best(rows)
    base = build.base_len
    span = TreeSpan(
        tokens=[branch.next_input for branch in branches],
        block_table=pages.table,
        visible=[base + branch.k for branch in branches],
        tails=[branch.tail if branch.tail is not None else 0 for branch in branches],
        depths=[branch.fed for branch in branches],
    )
    word, committed = build.ratio_round, session.tokens
    draws = [
        DrawRow(session.sampling, base + branch.k + 1 + branch.fed, round_word=word, committed=committed)
        for branch in branches
    ]
    return _Run(session, span, draws, "tree", branches)
