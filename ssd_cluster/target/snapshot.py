"""State of a target engine at one moment, for health pages, metrics and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_cluster.target.replica import DraftReplica
from ssd_cluster.target.session import SessionState


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """State of an engine at one moment.

    Attributes:
        free_blocks, total_blocks: KV pool; cached blocks that nobody holds count as free.
        running, waiting: choices.
        requests: live requests.
        sessions: open draft sessions by state of their handle.
        drafts: state of each draft replica.
    """

    free_blocks: int
    total_blocks: int
    running: int
    waiting: int
    requests: int
    sessions: dict[str, int]
    drafts: tuple[str, ...]


def count_sessions(replicas: Sequence[DraftReplica]) -> dict[str, int]:
    """Sessions open on the replicas, by state; every state has an entry."""
    counts = dict.fromkeys((state.value for state in SessionState), 0)
    for replica in replicas:
        for session in list(replica.sessions.values()):
            counts[session.state.value] += 1
    return counts
