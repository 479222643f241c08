"""The records of trace files as plain data, with their contents checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssd_cluster.errors import ConfigError
from ssd_cluster.target.times import PHASES
from ssd_cluster.tracefile import read_records
from ssd_cluster.types import LookupResult

NEXT = ("hit", "jit", "ngram", "none", "end")


@dataclass(frozen=True, slots=True)
class TracedRow:
    """One choice's part of a round; see ``target.trace`` for the fields."""

    choice: tuple[int, int]
    session: int
    emitted: int
    kept: int
    proposed: int
    source: str
    lookup: LookupResult | None
    rank: int | None
    next: str


@dataclass(frozen=True, slots=True)
class TracedRound:
    """One round: ``laps`` are (phase, end) in order; ``decoding``: no prompt tokens were run."""

    start: float
    laps: tuple[tuple[str, float], ...]
    tokens: int
    decoding: bool
    rows: tuple[TracedRow, ...]

    @property
    def end(self) -> float:
        return self.laps[-1][1] if self.laps else self.start

    def seconds(self, *phases: str) -> float:
        """Time in some phases."""
        total, before = 0.0, self.start
        for phase, end in self.laps:
            total += end - before if phase in phases else 0.0
            before = end
        return total

    @property
    def committed(self) -> float:
        """When the commits had left: the end of the last lap of phase ``link``."""
        return next((end for phase, end in reversed(self.laps) if phase == "link"), self.end)


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One forward of a draft; ``spans``: (session, kind, rows)."""

    start: float
    end: float
    rows: int
    spans: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True, slots=True)
class TracedBlock:
    """A block that left a draft."""

    time: float
    session: int
    branches: int
    tokens: int
    complete: bool


@dataclass(slots=True)
class Trace:
    """A target's trace and, where its file was there, its draft's.

    ``step_times``: (base, per row) seconds that drafts said their forwards take. ``dropped``: records that were lost.
    """

    header: dict[str, Any]
    rounds: list[TracedRound] = field(default_factory=list)
    step_times: list[tuple[float, float]] = field(default_factory=list)
    steps: list[TracedStep] = field(default_factory=list)
    blocks: list[TracedBlock] = field(default_factory=list)
    dropped: int = 0


def read_trace(path: Path) -> Trace:
    """The trace of a target, and that of its draft if ``path`` + ".draft" exists.

    Raises:
        ConfigError: not a target's trace, or damaged.
    """
    header, records = read_records(path)
    if header.get("role") != "target":
        raise ConfigError(f"{path} is the trace of a {header.get('role')}; name that of its target", param="trace")
    trace = Trace(header)
    drafts = path.with_name(path.name + ".draft")
    streams = [(path, records)] + ([(drafts, read_records(drafts)[1])] if drafts.exists() else [])
    for source, stream in streams:
        try:
            for record in stream:
                _take(trace, record)
        except (ValueError, TypeError, IndexError, KeyError) as error:
            raise ConfigError(f"{source} has a record that does not fit: {error!r}", param="trace") from error
    return trace


def _take(trace: Trace, record: Sequence[Any]) -> None:
    kind = record[0]
    if kind == "round":
        trace.rounds.append(_round(*record[1:]))
    elif kind == "draft":
        trace.step_times.append((float(record[3]) / 1e6, float(record[4]) / 1e6))
    elif kind == "step":
        spans = tuple((int(session), str(name), int(rows)) for session, name, rows in record[4])
        trace.steps.append(TracedStep(float(record[1]), float(record[2]), int(record[3]), spans))
    elif kind == "block":
        _, time, session, branches, tokens, complete = record
        trace.blocks.append(TracedBlock(float(time), int(session), int(branches), int(tokens), bool(complete)))
    elif kind == "end":
        trace.dropped += int(record[1])


def _round(start: float, laps: Any, tokens: int, decoding: bool, rows: Any) -> TracedRound:
    ends = tuple((str(phase), float(end)) for phase, end in laps)
    if any(phase not in PHASES for phase, _ in ends):
        raise ValueError(f"unknown phase among {sorted({phase for phase, _ in ends})}")
    return TracedRound(float(start), ends, int(tokens), bool(decoding), tuple(_row(*row) for row in rows))


def _row(
    arrival: int,
    choice: int,
    session: int,
    emitted: int,
    kept: int,
    proposed: int,
    source: str,
    lookup: str | None,
    rank: int | None,
    following: str,
) -> TracedRow:
    if not 0 <= kept <= proposed or emitted < 1 or following not in NEXT:
        raise ValueError(f"kept {kept} of {proposed}, emitted {emitted}, then {following!r}")
    found = LookupResult(lookup) if lookup is not None else None
    return TracedRow((arrival, choice), session, emitted, kept, proposed, source, found, rank, following)
