"""How many draft replicas there should be; what Serve's autoscaler asks. No Ray is needed to read or test it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

KEEP = ("rows", "row_credit", "sessions", "session_credit", "lateness", "target_utilisation", "late_share")
"""What a draft replica records for the policy; the last two are its settings, so that they can be changed in place."""


class Context(Protocol):
    """What is used of Serve's ``AutoscalingContext``."""

    current_num_replicas: int

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...

    @property
    def total_queued_requests(self) -> float | None: ...


class DraftPolicy:
    """As many replicas as keep rows and sessions at their wanted share of the credits; one more while blocks come late.

    Queued leases count as sessions. From zero replicas Serve itself starts the first one on a queued lease. Delays and
    bounds are Serve's business too.
    """

    def __call__(self, ctx: Context) -> tuple[float, dict[str, Any]]:
        """The wanted number of replicas, and no state."""
        now = ctx.current_num_replicas
        stats = ctx.aggregated_metrics or {}
        credits = stats.get("row_credit")
        if not credits:
            return now, {}  # nothing is known yet
        load = {name: _values(stats, name) for name in KEEP}
        share = _mean(load["target_utilisation"])
        sessions, rows = sum(load["sessions"]), sum(load["rows"])
        queued = float(ctx.total_queued_requests or 0)
        rows_each = rows / sessions if sessions else 0.0
        wanted = max(
            (rows + queued * rows_each) / (share * _mean(load["row_credit"])),
            (sessions + queued) / (share * _mean(load["session_credit"])),
        )
        if _mean(load["lateness"]) > _mean(load["late_share"]) and sessions > now:
            wanted = max(wanted, now + 1)  # sessions can be spread; a single slow one would gain nothing
        return math.ceil(wanted - 1e-9), {}


def _values(stats: Mapping[str, Mapping[Any, float]], name: str) -> list[float]:
    return list(stats.get(name, {}).values())


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
