"""From the records of repeated runs to one row of results. Pure arithmetic."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ssd_cluster.bench.handle import PHASES, PlannedRounds, RequestRecord, RunRecord
from ssd_cluster.types import Mode


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over repetitions."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One mode at one temperature and batch size.

    Attributes:
        tokens_per_s: of all sequences together while decoding, per repetition; see ``decode_speed``.
        tokens_per_round: kept tokens plus t*, per round of a sequence; plain rounds count 1.
        acceptance: share of the proposed tokens that were emitted; None if nothing was proposed.
        hit_rate: share of cache lookups that gave a proposal; None without lookups.
        round_ms: mean milliseconds per engine round by phase, their ``total``, and ``hit_path``: the median time from
            the end of one target forward to the start of the next where no row missed (None without samples).
        plans: what the controller planned, most rounds first; empty without one.
        name: what the row is called; the mode, but for engines on other cores.
        per_user: speed of one sequence, see ``user_speed``.
        hit_round_ms: mean time of rounds in which every row hit; None without any.
    """

    mode: Mode
    temperature: float
    batch: int
    tokens_per_s: Spread
    tokens_per_round: float
    acceptance: float | None
    hit_rate: float | None
    round_ms: dict[str, float | None]
    plans: tuple[PlannedRounds, ...] = ()
    name: str = ""
    per_user: Spread | None = None
    hit_round_ms: float | None = None

    @property
    def label(self) -> str:
        return self.name or self.mode.value


def summarise(mode: Mode, temperature: float, batch: int, runs: Sequence[RunRecord], name: str = "") -> ModeResult:
    """Result of at least one repetition of the same workload."""
    requests = [request for run in runs for request in run.requests]
    drafted = sum(request.draft_tokens for request in requests)
    hits = sum(request.cache_hits for request in requests)
    lookups = hits + sum(request.cache_misses for request in requests)
    speeds = [decode_speed(run.requests) for run in runs]
    users = [user_speed(run.requests) for run in runs]
    whole = [seconds for run in runs for seconds in run.hit_round_s]
    return ModeResult(
        mode=mode,
        temperature=temperature,
        batch=batch,
        tokens_per_s=Spread(statistics.median(speeds), min(speeds), max(speeds)),
        tokens_per_round=tokens_per_round(requests),
        acceptance=sum(request.accepted_tokens for request in requests) / drafted if drafted else None,
        hit_rate=hits / lookups if lookups else None,
        round_ms=round_breakdown(runs),
        plans=planned(runs),
        name=name,
        per_user=Spread(statistics.median(users), min(users), max(users)),
        hit_round_ms=1000 * statistics.fmean(whole) if whole else None,
    )


def planned(runs: Iterable[RunRecord]) -> tuple[PlannedRounds, ...]:
    """The plans of all runs with their rounds, most rounds first."""
    rounds: Counter[tuple[int, int, bool]] = Counter()
    for run in runs:
        for plan in run.plans:
            rounds[plan.k, plan.rows, plan.wait] += plan.rounds
    return tuple(PlannedRounds(k=k, rows=rows, wait=wait, rounds=n) for (k, rows, wait), n in rounds.most_common())


def decode_speed(requests: Iterable[RequestRecord]) -> float:
    """Tokens after each sequence's first part, divided by the time in which at least one sequence was decoding.

    At batch 1 that is decoding alone; in a larger batch the prefill of later prompts falls into it. 0 if no sequence
    has a second token.
    """
    spans = sorted((request.first_token_s, request.finished_s) for request in requests)
    tokens = sum(request.completion_tokens - request.first_tokens for request in requests)
    busy, end = 0.0, float("-inf")
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return tokens / busy if busy > 0 else 0.0


def user_speed(requests: Iterable[RequestRecord]) -> float:
    """Tokens after each sequence's first, divided by the sequences' own decoding times together: what one user sees."""
    tokens, busy = 0, 0.0
    for request in requests:
        tokens += request.completion_tokens - request.first_tokens
        busy += request.finished_s - request.first_token_s
    return tokens / busy if busy > 0 else 0.0


def answer_speed(requests: Iterable[RequestRecord]) -> float:
    """All tokens, divided by the time from asking to the last of them, prefill included; for one sequence at a time."""
    tokens, busy = 0, 0.0
    for request in requests:
        tokens += request.completion_tokens
        busy += request.finished_s - request.submitted_s
    return tokens / busy if busy > 0 else 0.0


def tokens_per_round(requests: Iterable[RequestRecord]) -> float:
    """Mean tokens per round of a sequence, t* included. The first token comes from the prefill and is no round's.

    A round with a proposal emits what it accepts and t*; every other round emits one token. In a round that ends inside
    its accepted tokens t* is not emitted, so the number of plain rounds is taken as at least 0.
    """
    tokens = rounds = 0
    for request in requests:
        decoded = request.completion_tokens - 1
        tokens += decoded
        rounds += request.spec_steps + max(0, decoded - request.accepted_tokens - request.spec_steps)
    return tokens / rounds if rounds else 0.0


def round_breakdown(runs: Sequence[RunRecord]) -> dict[str, float | None]:
    """Mean milliseconds per engine round and phase, their total, and the median hit path."""
    rounds = sum(run.rounds for run in runs)
    samples = [seconds for run in runs for seconds in run.hit_path_s]
    means: dict[str, float | None] = {}
    total = 0.0
    for phase in PHASES:
        seconds = sum(run.phase_s.get(phase, 0.0) for run in runs)
        mean = 1000 * seconds / rounds if rounds else 0.0
        means[phase] = mean
        total += mean
    means["total"] = total
    means["hit_path"] = 1000 * statistics.median(samples) if samples else None
    return means


def differing_outputs(reference: RunRecord, other: RunRecord) -> int:
    """Prompts whose output tokens differ between two runs of one workload."""
    pairs = zip(reference.requests, other.requests, strict=True)
    return sum(a.output_crc != b.output_crc for a, b in pairs)
