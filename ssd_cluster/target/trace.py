"""Writes what every round of a target did and how long its phases took.

Records: ``["round", start, [[phase, end], ...], tokens run, decoding only, rows]`` with one row per choice that got
tokens: ``[arrival, choice, session, emitted, kept, proposed, source, lookup, rank, next]``. ``source`` made the
proposal that was verified; ``lookup`` is how the cache was found after it (None: not counted), ``rank`` the place of t*
among the guesses; ``next`` is where the following proposal comes from: ``hit``, ``jit``, ``ngram``, ``none``, ``end``.
``["draft", time, name, base_us, per_row_us]``: the step time that a draft says it has, once and when it reconnects.
``["load", time, name, queue_us, step_us]``: how long it is busy, whenever it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_cluster.config import TargetSettings
from ssd_cluster.link.messages import Load, Welcome
from ssd_cluster.target.proposer import Decided
from ssd_cluster.target.replica import DraftReplica
from ssd_cluster.target.scheduler import Row
from ssd_cluster.target.times import Stopwatch
from ssd_cluster.tracefile import TraceWriter

_DRAFT = "draft"


class TargetTrace:
    """Turns rounds into records; used by the engine's thread. ``close`` when the engine has stopped."""

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._seen: dict[str, tuple[Welcome | None, Load | None]] = {}

    @classmethod
    def of(cls, settings: TargetSettings) -> TargetTrace | None:
        """The trace that the settings ask for; None if they ask for none.

        Raises:
            ConfigError: its file cannot be written.
        """
        if settings.trace is None:
            return None
        speculation = settings.speculation
        header = {
            "role": "target",
            "model": settings.name,
            "mode": settings.mode.value,
            "k": speculation.k,
            "rows": speculation.rows,
            "miss_policy": speculation.miss_policy.value,
            "wait_ms": speculation.wait_ms,
            "chain_k": speculation.chain_k,
        }
        return cls(TraceWriter(settings.trace, header))

    def round(self, watch: Stopwatch, rows: Sequence[Row], decided: Sequence[Decided]) -> None:
        """Record one round; its waits are over."""
        decoding = len(decided) == len(rows) and all(row.n_run == 1 for row in rows)
        tokens = sum(row.n_tokens for row in rows)
        self._writer.put(("round", watch.began, watch.laps, tokens, decoding, [_row(result) for result in decided]))
        for result in decided:
            session = result.choice.session
            if session is not None and session.replica is not None:
                self._note(session.replica, watch.now)

    def _note(self, replica: DraftReplica, now: float) -> None:
        """What a draft says of itself, when it is new."""
        welcome, load = self._seen.get(replica.name, (None, None))
        if replica.welcome is not None and replica.welcome is not welcome:
            step = replica.welcome.step_time
            self._writer.put(("draft", now, replica.name, step.base_us, step.per_row_us))
        if replica.load is not None and replica.load is not load:
            self._writer.put(("load", now, replica.name, replica.load.queue_us, replica.load.step_us))
        self._seen[replica.name] = (replica.welcome, replica.load)

    def close(self) -> None:
        """Write what is left and end the file."""
        self._writer.close()


def _row(result: Decided) -> tuple[Any, ...]:
    choice, proposal = result.choice, result.proposal
    session = choice.session.id if choice.session is not None else 0
    lookup = result.lookup.value if result.lookup is not None else None
    return (
        choice.arrival,
        choice.index,
        session,
        len(result.emitted),
        result.n_accepted,
        len(proposal.tokens),
        proposal.source,
        lookup,
        result.rank,
        _next(result),
    )


def _next(result: Decided) -> str:
    if result.ended:
        return "end"
    source = result.choice.proposal.source
    if source != _DRAFT:
        return source
    return "hit" if result.hit else "jit"
