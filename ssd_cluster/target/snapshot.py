"""State of a target engine at one moment, for health pages, metrics and tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.model.kv import BlockPool
from ssd_cluster.target.drafts import DraftPool
from ssd_cluster.target.pilot import Pilot
from ssd_cluster.target.replica import DraftReplica
from ssd_cluster.target.scheduler import Scheduler
from ssd_cluster.target.session import SessionState


@dataclass(frozen=True, slots=True)
class LinkSnapshot:
    """One draft replica as this target sees it.

    Attributes:
        replica: its name; of a leased one that which Serve gave it.
        state: of the link.
        breaker: closed, open or half_open.
        sessions: of this target.
        session_credit, row_credit: what this target may use there.
        lookups: cache lookups of sessions there, by result.
    """

    replica: str
    state: str
    breaker: str
    sessions: int
    session_credit: int
    row_credit: int
    lookups: dict[str, int]


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """State of an engine at one moment.

    Attributes:
        free_blocks, total_blocks: KV pool; cached blocks that nobody holds count as free.
        running, waiting: choices.
        requests: live requests.
        sessions: open draft sessions by state of their handle.
        drafts: state of each draft replica.
        links: the draft replicas in detail.
        leases: leases ``held``, and ``waiting`` to be granted or used.
    """

    free_blocks: int
    total_blocks: int
    running: int
    waiting: int
    requests: int
    sessions: dict[str, int]
    drafts: tuple[str, ...]
    links: tuple[LinkSnapshot, ...]
    leases: dict[str, int]


def take_snapshot(pool: BlockPool, drafts: DraftPool, running: int, waiting: int, requests: int) -> EngineSnapshot:
    """The state now; for any thread."""
    replicas = drafts.links.replicas
    held, asked = drafts.leases.counts if drafts.leases is not None else (0, 0)
    return EngineSnapshot(
        free_blocks=pool.n_free,
        total_blocks=pool.n_total,
        running=running,
        waiting=waiting,
        requests=requests,
        sessions=count_sessions(replicas),
        drafts=tuple(replica.state.value for replica in replicas),
        links=tuple(map(_link, replicas)),
        leases={"held": held, "waiting": asked},
    )


def gauge(metrics: TargetMetrics, pool: BlockPool, drafts: DraftPool, pilot: Pilot, scheduler: Scheduler) -> None:
    """Bring the gauges of an engine up to date; on its thread."""
    metrics.requests_running.set(len(scheduler.running))
    metrics.requests_waiting.set(len(scheduler.waiting))
    metrics.kv_usage.set(1 - pool.n_free / pool.n_total)
    pilot.gauge()
    metrics.preemptions.inc(scheduler.take_preemptions())
    if drafts.usable:
        for state, count in count_sessions(drafts.links.replicas).items():
            metrics.sessions.labels(state).set(count)


def _link(replica: DraftReplica) -> LinkSnapshot:
    return LinkSnapshot(
        replica=replica.name,
        state=replica.state.value,
        breaker=replica.breaker.state.value,
        sessions=len(replica.sessions),
        session_credit=replica.session_credit,
        row_credit=replica.row_credit,
        lookups=dict(replica.lookups),
    )


def count_sessions(replicas: Sequence[DraftReplica]) -> dict[str, int]:
    """Sessions open on the replicas, by state; every state has an entry."""
    counts = dict.fromkeys((state.value for state in SessionState), 0)
    for replica in replicas:
        for session in list(replica.sessions.values()):
            counts[session.state.value] += 1
    return counts
