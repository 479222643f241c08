"""When blocks leave: a tree once it is complete, or what exists of it by its deadline and after every step from then.

An incomplete block is worth much more than none, and the outcome may come at any moment after the deadline; so an
overdue tree is pushed again after each step that adds to it, and the newer block replaces the older one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ssd_cluster.draft.builds import ChainBuild, TreeBuild
from ssd_cluster.draft.session import Session
from ssd_cluster.draft.table import Peer
from ssd_cluster.draft.trace import DraftTrace
from ssd_cluster.link.messages import Block, BlockBatch
from ssd_cluster.metrics import DraftMetrics


class Publisher:
    """Pushes blocks, those of one peer in one frame.

    Args:
        metrics: counters.
        done_with: called with a session whose chain was pushed: nothing more is drawn for it.
        clock: seconds, monotonic.
        trace: where blocks are recorded; None: nowhere.
    """

    def __init__(
        self,
        metrics: DraftMetrics,
        done_with: Callable[[Session], None],
        clock: Callable[[], float],
        trace: DraftTrace | None = None,
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._metrics = metrics
        self._done_with = done_with

    def publish(self, sessions: Iterable[Session], by: float, *, force: bool = False) -> int:
        """Push what is complete, or due at ``by``, and not pushed yet; returns the number of blocks.

        Args:
            sessions: whose work to look at.
            by: clock time; a deadline at or before it has come. Before a step that is the step's expected end, since
                nothing can leave in between.
            force: push the newest state even if it was pushed before.
        """
        frames: dict[Peer, list[Block]] = {}
        for session in sessions:
            if not session.ended and _ready(session, by, force):
                frames.setdefault(session.peer, []).append(self._block(session))
        for peer, blocks in frames.items():
            peer.send(BlockBatch(tuple(blocks)))
        return sum(map(len, frames.values()))

    def _block(self, session: Session) -> Block:
        build = session.build
        if build is None:
            raise ValueError("a session without work has no block")
        branches = build.block()
        full = build.done
        if isinstance(build, TreeBuild):
            build.pushed = build.size
        else:
            build.pushed = True
            self._done_with(session)
        self._metrics.blocks.labels("full" if full else "partial").inc()
        session.block_seq += 1
        if self._trace is not None:
            size = sum(len(branch.tokens) for branch in branches)
            self._trace.block(self._clock(), session.id, len(branches), size, full)
        if build.ratio_round is not None:
            session.shelf.put(session.block_seq, build)
        return Block(session.id, session.epoch, session.block_seq, build.base_len, build.fingerprint, branches)


def _ready(session: Session, by: float, force: bool) -> bool:
    build = session.build
    if isinstance(build, ChainBuild):
        return bool(build.tokens) and (force or not build.pushed) and (force or build.done or build.deadline_s <= by)
    if not isinstance(build, TreeBuild) or not build.branches:
        return False
    return force or (build.pushed != build.size and (build.done or build.due_s <= by))
