"""State of a draft engine at one moment, for operators, for placing sessions and for scaling."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ssd_cluster.config import DraftSettings
from ssd_cluster.draft.leases import LeaseBook
from ssd_cluster.draft.load import LoadReporter
from ssd_cluster.draft.peaks import Peaks
from ssd_cluster.draft.table import SessionTable
from ssd_cluster.model.runner import ModelRunner


@dataclass(frozen=True, slots=True)
class DraftSnapshot:
    """State of a draft engine at one moment.

    Attributes:
        sessions: open sessions; ``session_credit``: most of them.
        targets: open sessions by target id.
        leases: held leases.
        rows: rows per round that the open sessions may ask for together; ``row_credit``: what is meant to be asked for.
        lateness: share of recent rounds that ended before anything was pushed for them, 0 to 1.
        free_blocks, free_tails: KV pages and branch slots.
        draining: sessions are sent elsewhere.
        peaks: the longest that its queues have been since it started.
    """

    sessions: int
    session_credit: int
    targets: dict[str, int]
    leases: int
    rows: int
    row_credit: int
    lateness: float
    free_blocks: int
    free_tails: int
    draining: bool
    peaks: Peaks


def take_snapshot(
    runner: ModelRunner,
    settings: DraftSettings,
    table: SessionTable,
    load: LoadReporter,
    leases: LeaseBook | None,
    draining: bool,
) -> DraftSnapshot:
    """The state now; for any thread."""
    targets: dict[str, int] = {}
    rows = 0
    for peer in list(table.peers.values()):
        sessions = list(peer.sessions.values())
        if peer.incarnation is not None:
            targets[peer.target_id] = targets.get(peer.target_id, 0) + len(sessions)
        rows += sum(session.transcript.round.rows for session in sessions)
    return DraftSnapshot(
        sessions=len(table),
        session_credit=settings.session_credit,
        targets=targets,
        leases=len(leases) if leases is not None else 0,
        rows=rows,
        row_credit=settings.row_credit,
        lateness=load.lateness,
        free_blocks=runner.pool.n_free,
        free_tails=runner.tails.n_free if runner.tails is not None else 0,
        draining=draining,
        peaks=replace(load.peaks),
    )
