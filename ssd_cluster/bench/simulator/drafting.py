"""A draft replica in the model: sessions of many targets, one forward at a time, granted by the engine's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ssd_cluster.bench.simulator.builds import Build, Chain, Tree
from ssd_cluster.bench.simulator.events import Timeline
from ssd_cluster.bench.simulator.messages import Block, Commit
from ssd_cluster.bench.simulator.settings import SimulationSettings
from ssd_cluster.draft.scheduler import Demand, RowKind, Scheduler
from ssd_cluster.draft.shares import fair_shares
from ssd_cluster.speculation.fanout import make_planner
from ssd_cluster.speculation.statistics import OutcomeStatistics

_EARLY_MARGIN = 2.0
_EARLY_RATE = 0.1


@dataclass(slots=True, eq=False)
class Session:
    """One sequence on this draft.

    ``backlog``: committed tokens before the last one that it has not run. ``due_s``: when its outcome was expected.
    """

    target: int
    build: Build | None = None
    backlog: int = 0
    due_s: float = 0.0


class SimulatedDraft:
    """Answers commits with blocks.

    Between two forwards it takes in what has arrived, re-roots, and pushes what is complete or falls due before the
    next forward ends; an overdue tree is pushed again after each step that adds to it.

    Args:
        timeline: virtual time.
        settings: of the simulation.
        push: called with every block, at the time when it leaves.
    """

    def __init__(self, timeline: Timeline, settings: SimulationSettings, push: Callable[[Block], None]) -> None:
        self.busy_s = 0.0
        self.steps = 0
        self.rows_run = 0
        self._timeline = timeline
        self._settings = settings
        self._push = push
        self._planner = make_planner(settings.fanout)
        self._scheduler = Scheduler(settings.max_step_rows, settings.max_step_rows)
        self._sessions: dict[int, Session] = {}
        self._active: dict[int, Session] = {}
        self._statistics: dict[int, OutcomeStatistics] = {}
        self._early: dict[int, float] = {}
        self._inbox: list[tuple[float, Commit]] = []
        self._running = False

    def receive(self, commits: list[Commit]) -> None:
        """A frame has arrived."""
        self._inbox += [(self._timeline.now, commit) for commit in commits]
        if not self._running:
            self._boundary()

    def _boundary(self) -> None:
        """Between two forwards."""
        inbox, self._inbox = self._inbox, []
        for arrived, commit in inbox:
            self._begin(commit, arrived)
        grants = self._scheduler.grant([self._demand(session) for session in self._active.values()])
        self._running = bool(grants)
        if not grants:
            return
        rows = sum(granted for _, granted in grants)
        seconds = self._settings.step_ms.seconds(rows)
        ends = self._timeline.now + seconds
        for session in self._active.values():
            self._publish(session, ends)
        self._timeline.at(ends, lambda: self._finish(grants, rows, seconds))

    def _begin(self, commit: Commit, arrived: float) -> None:
        """Apply one commit: learn from its outcome, drop or carry over work, start the next build."""
        session = self._sessions.setdefault(commit.sequence, Session(commit.target))
        old, session.build, carried = session.build, None, 0
        if commit.outcome is not None:
            carried = self._learn(session, old, commit, arrived)
        if commit.n is None:
            pull_s, deadline_s = arrived + commit.pull_s, arrived + commit.deadline_s
            chain = Chain(commit.sequence, commit.round, commit.k, pull_s, deadline_s)
            chain.tokens = min(carried, commit.k)
            session.build = chain
            if chain.done:
                self._publish(session, self._timeline.now)
        elif commit.rows:
            session.due_s = arrived + commit.due_s
            due = session.due_s - _EARLY_MARGIN * self._early.get(commit.target, 0.0)
            session.build = Tree(commit.sequence, commit.round, commit.n, commit.k, commit.rows, due)
        self._active.pop(commit.sequence, None)
        if session.build is not None and not session.build.done:
            self._active[commit.sequence] = session

    def _learn(self, session: Session, old: Build | None, commit: Commit, arrived: float) -> int:
        """Count the outcome; returns the tokens that were drafted behind it."""
        outcome = commit.outcome
        if outcome is None:
            return 0
        glued = isinstance(old, Tree) and old.branches is not None
        guesses = old.rows if isinstance(old, Tree) and glued else None
        rank = outcome.rank if guesses is not None and outcome.rank < guesses else None
        self._of(session.target).observe(outcome.n, outcome.kept, rank, guesses)
        session.backlog = 0 if glued else session.backlog + 1 + outcome.kept
        if not isinstance(old, Tree):
            return 0
        early = max(0.0, session.due_s - arrived)
        mean = self._early.get(session.target, 0.0)
        self._early[session.target] = mean + _EARLY_RATE * (early - mean)
        return old.carried(outcome)

    def _of(self, target: int) -> OutcomeStatistics:
        return self._statistics.setdefault(target, OutcomeStatistics())

    def _demand(self, session: Session) -> Demand[Session]:
        build, target = session.build, str(session.target)
        if isinstance(build, Tree):
            if build.branches is not None:
                late = build.due_s < self._timeline.now and build.pushed is not None
                return Demand(session, target, RowKind.TREE, len(build.live), 1, build.due_s, late)
            pending = session.backlog + 1 + build.n
            return Demand(session, target, RowKind.TREE, pending, pending, build.due_s)
        if build is None or build.glued:
            return Demand(session, target, RowKind.JIT, 1)
        pending = session.backlog + 1 + build.tokens
        return Demand(session, target, RowKind.JIT, pending, pending)

    def _finish(self, grants: list[tuple[Demand[Session], int]], rows_run: int, seconds: float) -> None:
        """A forward has ended; what was committed meanwhile is applied after it has been pushed."""
        self.busy_s += seconds
        self.steps += 1
        self.rows_run += rows_run
        for demand, rows in grants:
            session = demand.session
            build = session.build
            if isinstance(build, Chain):
                build.tokens += 1
                session.backlog = session.backlog if build.glued else 0
                build.glued = True
            elif isinstance(build, Tree) and build.branches is None:
                session.backlog = 0
                build.plant(self._planner, self._of(session.target), self._allowance(session, build))
            elif isinstance(build, Tree):
                build.grow(rows)
        for session in list(self._active.values()):
            self._publish(session, self._timeline.now)
        self._active = {key: one for key, one in self._active.items() if one.build is not None and not one.build.done}
        self._boundary()

    def _allowance(self, session: Session, tree: Tree) -> int:
        """Branches that a tree may have where credits are exceeded, as the draft engine cuts them."""
        wanted = {session.target: 0}
        for one in self._active.values():
            if isinstance(one.build, Tree):
                wanted[one.target] = wanted.get(one.target, 0) + one.build.rows
        mine = max(tree.rows, wanted[session.target])
        capped = {target: min(rows, self._settings.row_credit) for target, rows in wanted.items()}
        share = fair_shares(capped, dict.fromkeys(capped, 1.0), self._settings.max_step_rows)[session.target]
        return tree.rows if share >= mine else max(1, tree.rows * share // mine)

    def _publish(self, session: Session, by: float) -> None:
        """Push a build that is complete, was asked for, or falls due at ``by``, and has something new."""
        build, now = session.build, self._timeline.now
        if isinstance(build, Tree):
            if build.branches is not None and build.pushed != build.size and (build.done or build.due_s <= by):
                build.pushed = build.size
                self._push(build.block())
        elif build is not None and build.tokens and not build.pushed:
            wanted = build.pull_s <= now or build.deadline_s <= by
            build.pushed = wanted or build.done
            if build.pushed:
                self._push(build.block())
