"""In which order the draft replicas are tried for a lease: pure, so that it can be read and tested without Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPILL_AT = 0.8
LATE_AT = 0.3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica as its newest statistics show it.

    Attributes:
        name: that Serve gave it.
        rows, row_credit: rows per round that its sessions ask for, and what is meant to be asked for.
        lateness: share of recent rounds for which nothing was pushed in time.
        draining: it sends sessions elsewhere.
    """

    name: str
    rows: int = 0
    row_credit: int = 0
    lateness: float = 0.0
    draining: bool = False

    @classmethod
    def of(cls, name: str, stats: Mapping[str, Any]) -> Candidate:
        """From what a draft replica records; a replica that has recorded nothing yet is taken for empty."""
        return cls(
            name,
            rows=int(stats.get("rows", 0)),
            row_credit=int(stats.get("row_credit", 0)),
            lateness=float(stats.get("lateness", 0.0)),
            draining=bool(stats.get("draining", False)),
        )

    def used(self, more: int = 0) -> float:
        """Share of the row credit in use, with ``more`` rows on top."""
        return (self.rows + more) / self.row_credit if self.row_credit else 0.0


def rank(
    candidates: Sequence[Candidate], rows: int, linked: Collection[str], exclude: Collection[str]
) -> list[list[str]]:
    """Groups of names, to be tried one after the other; within a group the one with the fewest leases is taken.

    Replicas that the target is linked to come first while they have rows free and are in time, then the others with
    rows free, emptiest first, then what is overcommitted. Excluded replicas come last, but they do come: the target's
    breaker decides then.

    Args:
        candidates: the running replicas.
        rows: that the session will ask for.
        linked: names of replicas that the target has a link to.
        exclude: names of replicas that have just failed it.
    """
    groups: dict[tuple[int, float], list[str]] = {}
    for one in candidates:
        groups.setdefault(_grade(one, rows, one.name in linked, one.name in exclude), []).append(one.name)
    return [groups[grade] for grade in sorted(groups)]


def _grade(one: Candidate, rows: int, linked: bool, excluded: bool) -> tuple[int, float]:
    if one.draining:
        return 4, 0.0
    if excluded:
        return 3, 0.0
    if one.used(rows) > SPILL_AT or one.lateness > LATE_AT:
        return 2, round(one.used(rows), 1)
    return (0, 0.0) if linked else (1, round(one.used(rows), 1))
