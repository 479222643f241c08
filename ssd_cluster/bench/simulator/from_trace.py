"""Settings and outcome laws of the model from a recorded round trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from ssd_cluster.bench.simulator.laws import OutcomeLaw, RecordedLaws
from ssd_cluster.bench.simulator.run import Laws
from ssd_cluster.bench.simulator.settings import SimulationSettings
from ssd_cluster.bench.tracing.records import Trace, TracedRow
from ssd_cluster.bench.tracing.summary import decoding_rounds
from ssd_cluster.errors import ConfigError
from ssd_cluster.target.times import VERIFY_PHASES
from ssd_cluster.types import LookupResult

RECORDED = frozenset({"acceptance", "fallback_acceptance", "hits", "hits_after_backup"})
"""Settings that a recorded law replaces."""

_LEAST_SHARE = 0.02
_FAR_ROWS = 64


def trace_settings(trace: Trace) -> dict[str, Any]:
    """Times, batch and speculation of a trace, as settings; ``step_ms`` is left out where the draft is not known.

    Raises:
        ConfigError: it has no decoding rounds.
    """
    rounds = decoding_rounds(trace)
    if not rounds:
        raise ConfigError("the trace has no decoding rounds", param="trace")
    local = [row.proposed for one in rounds for row in one.rows if row.source == "ngram"]
    plain = sum(row.source == "none" for one in rounds for row in one.rows)
    settings: dict[str, Any] = {
        "batch": max(1, round(fmean(len(one.rows) for one in rounds))),
        "k": max(1, int(trace.header["k"])),
        "rows": max(1, int(trace.header["rows"])),
        "miss_policy": trace.header["miss_policy"],
        "wait_ms": trace.header["wait_ms"],
        "chain_k": trace.header.get("chain_k"),
        "verify_ms": _verify_times(trace),
        "overhead_ms": 1e3 * fmean(one.seconds("link", "other") for one in rounds),
        "fallback_tokens": round(fmean(local)) if len(local) > plain else 0,
    }
    step = _step_times(trace)
    return settings if step is None else settings | {"step_ms": step}


def _verify_times(trace: Trace) -> str:
    """Mean time by number of tokens, of the numbers that occurred often enough."""
    by_tokens: dict[int, list[float]] = defaultdict(list)
    rounds = decoding_rounds(trace)
    for one in rounds:
        by_tokens[one.tokens].append(1e3 * one.seconds(*VERIFY_PHASES))
    least = max(1.0, _LEAST_SHARE * len(rounds))
    points = sorted((tokens, fmean(times)) for tokens, times in by_tokens.items() if len(times) >= least)
    return "/".join(f"{tokens}:{ms:.6g}" for tokens, ms in points)


def _step_times(trace: Trace) -> str | None:
    """A line through the draft's forwards; what the draft says of itself where they were not recorded."""
    steps = [step for step in trace.steps if all(kind != "prefill" for _, kind, _ in step.spans)]
    if steps:
        rows = np.array([step.rows for step in steps], dtype=float)
        seconds = np.array([step.end - step.start for step in steps])
        spread = float(((rows - rows.mean()) ** 2).sum())
        slope = max(0.0, float(((rows - rows.mean()) * (seconds - seconds.mean())).sum()) / spread) if spread else 0.0
        base = max(0.0, float(seconds.mean()) - slope * float(rows.mean()))
    elif trace.step_times:
        base, slope = trace.step_times[-1]
    else:
        return None
    return f"1:{1e3 * (base + slope):.6g}/{_FAR_ROWS}:{1e3 * (base + _FAR_ROWS * slope):.6g}"


def trace_laws(trace: Trace) -> Laws:
    """Outcomes as the trace has them; where a case never occurred, all cases together stand in."""
    acceptance = _hazards((row.kept, row.proposed) for row, _ in _cases(trace) if row.source == "draft")
    fallback = _hazards((row.kept, row.proposed) for row, _ in _cases(trace) if row.source == "ngram")
    looked_up = [(row, cached) for row, cached in _cases(trace) if _tells_rank(row)]
    pooled = _rank_law([row for row, _ in looked_up])
    ranks: dict[tuple[bool, bool], Sequence[float]] = {}
    for full in (False, True):
        for cached in (False, True):
            rows = [row for row, was in looked_up if was is cached and (row.kept == row.proposed) is full]
            ranks[full, cached] = _rank_law(rows) if rows else pooled

    def laws(settings: SimulationSettings, seed: int) -> OutcomeLaw:
        return RecordedLaws(acceptance or [0.0], fallback or [0.0], ranks, seed)

    return laws


def _cases(trace: Trace) -> Iterator[tuple[TracedRow, bool]]:
    """Rows that did not end their choice, each with whether its proposal came from the cache at once."""
    before: dict[tuple[int, int], str] = {}
    for one in trace.rounds:
        for row in one.rows:
            if row.next != "end":
                yield row, before.get(row.choice) == "hit"
            before[row.choice] = row.next


def _hazards(outcomes: Iterable[tuple[int, int]]) -> list[float]:
    """Per position: share of those that reached it that kept its token."""
    tried: list[int] = []
    kept: list[int] = []
    for k, n in outcomes:
        tried += [0] * (n - len(tried))
        kept += [0] * (n - len(kept))
        for position in range(min(k + 1, n)):
            tried[position] += 1
            kept[position] += position < k
    return [k / n for k, n in zip(kept, tried, strict=True) if n]


def _tells_rank(row: TracedRow) -> bool:
    """Whether the lookup compared t* with guesses."""
    return row.rank is not None or row.lookup in (LookupResult.HIT, LookupResult.MISS)


def _rank_law(rows: Sequence[TracedRow]) -> list[float]:
    """P(rank); what is missing to 1 was not guessed. A hit without a rank followed drafted tokens: first choices."""
    ranks = [row.rank if row.rank is not None else 0 for row in rows if row.lookup is not LookupResult.MISS]
    return [ranks.count(rank) / len(rows) for rank in range(max(ranks, default=-1) + 1)]
