"""Figures of one entry on one workload, from the records of its repetitions. Pure arithmetic."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ssd_cluster.bench.clusters import Estimate, ratio
from ssd_cluster.bench.contest.run import Contest
from ssd_cluster.bench.handle import RunRecord
from ssd_cluster.bench.store import Store
from ssd_cluster.bench.summary import (
    Spread,
    answer_speed,
    decode_speed,
    round_breakdown,
    tokens_per_round,
    user_speed,
)

Runs = Sequence[RunRecord | None]
"""By repetition; None: not there yet."""


@dataclass(frozen=True, slots=True)
class Result:
    """One entry on one workload.

    Attributes:
        tokens_per_s: of all sequences together while decoding.
        per_user: of one sequence, from its first token to its last.
        answer_speed: tokens by the time from asking to the last of them; of one sequence at a time.
        ratios: speed relative to other entries, by their names, repetition by repetition.
        tokens_per_round: kept tokens plus t*.
        hits: share of cache lookups that hit; its interval resamples prompts. None without lookups.
        acceptance: share of proposed tokens that were emitted; None if nothing was proposed.
        round_ms: mean by phase; see ``summary.round_breakdown``.
        tokens: generated, of all repetitions together.
        repetitions: runs that went into it.
    """

    name: str
    temperature: float
    batch: int
    tokens_per_s: Spread
    per_user: Spread
    answer_speed: Spread
    ratios: dict[str, Spread]
    tokens_per_round: float
    hits: Estimate | None
    acceptance: float | None
    round_ms: dict[str, float | None]
    tokens: int
    repetitions: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def results_of(contest: Contest, store: Store, references: Sequence[str]) -> list[Result]:
    """Results of everything that has a record: by workload, in the order of the entries.

    Args:
        contest: what was to be run.
        store: records.
        references: entries that all others are compared with, if they were run.
    """
    found = []
    for workload in contest.workloads:
        runs = {entry.name: contest.runs(entry.name, workload, store) for entry in contest.entries}
        for name, own in runs.items():
            against = {other: runs[other] for other in references if other in runs and other != name}
            if any(own):
                found.append(_result(name, workload.temperature, workload.batch, own, against))
    return found


def _result(name: str, temperature: float, batch: int, own: Runs, against: Mapping[str, Runs]) -> Result:
    there = [run for run in own if run is not None]
    requests = [request for run in there for request in run.requests]
    drafted = sum(request.draft_tokens for request in requests)
    compared = {other: paired(own, runs) for other, runs in against.items()}
    return Result(
        name=name,
        temperature=temperature,
        batch=batch,
        tokens_per_s=spread([decode_speed(run.requests) for run in there]),
        per_user=spread([user_speed(run.requests) for run in there]),
        answer_speed=spread([answer_speed(run.requests) for run in there]),
        ratios={other: ratios for other, ratios in compared.items() if ratios is not None},
        tokens_per_round=tokens_per_round(requests),
        hits=hit_rate(there),
        acceptance=sum(request.accepted_tokens for request in requests) / drafted if drafted else None,
        round_ms=round_breakdown(there),
        tokens=sum(request.completion_tokens for request in requests),
        repetitions=len(there),
    )


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    return Spread(statistics.median(values), min(values), max(values))


def paired(own: Runs, other: Runs) -> Spread | None:
    """Speed relative to another entry's, over the repetitions that both have; None if there is none."""
    pairs = [(a, b) for a, b in zip(own, other, strict=True) if a is not None and b is not None]
    speeds = [(decode_speed(a.requests), decode_speed(b.requests)) for a, b in pairs]
    values = [a / b for a, b in speeds if b > 0]
    return spread(values) if values else None


def hit_rate(runs: Sequence[RunRecord]) -> Estimate | None:
    """Hits per lookup; a prompt's repetitions are one cluster."""
    prompts = zip(*(run.requests for run in runs), strict=True)
    counts = []
    for requests in prompts:
        hits = sum(request.cache_hits for request in requests)
        counts.append((float(hits), float(hits + sum(request.cache_misses for request in requests))))
    return ratio(counts)


def shown(value: Spread | None, form: str = "{:.1f}") -> str:
    """``median (min-max)``."""
    if value is None:
        return "-"
    return f"{form.format(value.median)} ({form.format(value.min)}-{form.format(value.max)})"


def figure(value: float | None, form: str = "{:.2f}") -> str:
    """A number, or ``-``."""
    return "-" if value is None else form.format(value)


def grouped(results: Sequence[Result], of: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    """Results by a property, in order."""
    groups: dict[Any, list[Result]] = {}
    for result in results:
        groups.setdefault(of(result), []).append(result)
    return groups
