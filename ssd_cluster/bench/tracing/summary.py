"""What a trace says in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ssd_cluster.bench.tracing.records import Trace, TracedRound, TracedRow
from ssd_cluster.target.times import PHASES
from ssd_cluster.types import LookupResult


def decoding_rounds(trace: Trace) -> list[TracedRound]:
    """Rounds without prompt tokens."""
    return [one for one in trace.rounds if one.decoding]


def drafted_rows(trace: Trace) -> Iterator[TracedRow]:
    """Rows that verified a draft's proposal to its end: a choice that ended inside it says nothing about the rest."""
    for one in decoding_rounds(trace):
        yield from (row for row in one.rows if row.source == "draft" and row.proposed and row.next != "end")


def summary(trace: Trace) -> dict[str, object]:
    """Figures of the decoding rounds.

    ``phase_ms``: mean by phase. ``kept``: P(k) of the draft's proposals of full length. ``lookups``: shares by result.
    ``next``: shares by where the following proposal came from. ``draft``: figures of its forwards and blocks, if known.
    """
    rounds = decoding_rounds(trace)
    rows = [row for one in rounds for row in one.rows]
    lookups = Counter(row.lookup for row in rows if row.lookup is not None)
    following = Counter(row.next for row in rows if row.next != "end")
    drafted = list(drafted_rows(trace))
    longest = max((row.proposed for row in drafted), default=0)
    kept = Counter(row.kept for row in drafted if row.proposed == longest)
    busy = sum(one.end - one.start for one in rounds)
    return {
        "rounds": len(rounds),
        "other_rounds": len(trace.rounds) - len(rounds),
        "dropped": trace.dropped,
        "tokens": sum(row.emitted for row in rows),
        "round_ms": 1e3 * busy / len(rounds) if rounds else None,
        "phase_ms": {phase: 1e3 * sum(o.seconds(phase) for o in rounds) / max(1, len(rounds)) for phase in PHASES},
        "rows_per_round": len(rows) / len(rounds) if rounds else None,
        "tokens_per_round": sum(row.emitted for row in rows) / len(rows) if rows else None,
        "acceptance": sum(row.kept for row in drafted) / sum(row.proposed for row in drafted) if drafted else None,
        "kept": [kept[k] / kept.total() for k in range(longest + 1)] if drafted else [],
        "hit_rate": lookups[LookupResult.HIT] / lookups.total() if lookups else None,
        "lookups": {result.value: lookups[result] / lookups.total() for result in LookupResult if lookups},
        "next": {name: count / following.total() for name, count in sorted(following.items())},
        "draft": _draft(trace),
    }


def _draft(trace: Trace) -> dict[str, float] | None:
    if not trace.steps:
        return None
    span = trace.steps[-1].end - trace.steps[0].start
    busy = sum(step.end - step.start for step in trace.steps)
    builds = build_times(trace)
    return {
        "steps": len(trace.steps),
        "step_ms": 1e3 * busy / len(trace.steps),
        "rows_per_step": sum(step.rows for step in trace.steps) / len(trace.steps),
        "utilisation": busy / span if span > 0 else 0.0,
        "blocks": len(trace.blocks),
        "complete": sum(block.complete for block in trace.blocks) / max(1, len(trace.blocks)),
        "build_ms": 1e3 * sum(builds) / len(builds) if builds else 0.0,
    }


def build_times(trace: Trace) -> list[float]:
    """Seconds from the start of each tree's glue forward until its complete block left."""
    started: dict[int, float] = {}
    builds, steps = [], iter(trace.steps)
    step = next(steps, None)
    for block in trace.blocks:
        while step is not None and step.start < block.time:
            started.update({session: step.start for session, kind, _ in step.spans if kind == "glue"})
            step = next(steps, None)
        if block.complete and block.session in started:
            builds.append(block.time - started.pop(block.session))
    return builds


def summary_lines(figures: dict[str, object]) -> list[str]:
    """The figures for people, one quantity a line."""
    return [f"{name.replace('_', ' '):18}{_shown(value)}" for name, value in figures.items() if value not in (None, [])]


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{str(name).replace('_', ' ')} {_shown(part)}" for name, part in value.items())
    if isinstance(value, list):
        return " ".join(_shown(part) for part in value)
    return f"{value:.3f}" if isinstance(value, float) else str(value)
