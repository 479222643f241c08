"""Latencies and throughput at one offered rate, from the records of its runs. Pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ssd_cluster.bench.contest.results import spread
from ssd_cluster.bench.summary import Spread

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One offered rate. Every spread is over repetitions; times in milliseconds.

    Attributes:
        rate: requests offered per second.
        ttft_p50, ttft_p99: from when a request was due to its first text.
        token_p50, token_p99: from first to last text, per token behind the first, of each answer.
        gap_p50, gap_p99: between parts of an answer, each of which may hold several tokens.
        per_user: tokens/s of the median answer.
        tokens_per_s: tokens of complete answers by the time until the last one.
        per_device: the same divided by all cores or devices; None if their number was not told.
        lag_p99: how late requests left: if this is not small, the client was too slow.
        answered: complete answers; ``errors``: the others by kind; all repetitions together.
        repetitions: runs.
    """

    rate: float
    ttft_p50: Spread | None
    ttft_p99: Spread | None
    token_p50: Spread | None
    token_p99: Spread | None
    gap_p50: Spread | None
    gap_p99: Spread | None
    per_user: Spread | None
    tokens_per_s: Spread
    per_device: Spread | None
    lag_p99: Spread | None
    answered: int
    errors: dict[str, int]
    repetitions: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def load_result(rate: float, runs: Sequence[Run], devices: int | None) -> LoadResult:
    """Figures of at least one run.

    Args:
        rate: offered.
        runs: records of ``offer``.
        devices: cores or devices behind the endpoint, the draft's among them.
    """
    complete = [[r for r in run["requests"] if r["error"] is None] for run in runs]
    errors = Counter(r["error"] for run in runs for r in run["requests"] if r["error"] is not None)
    speeds = [sum(r["completion_tokens"] for r in rs) / run["seconds"] for rs, run in zip(complete, runs, strict=True)]
    ttft, token, gap = ([_ms(of, rs) for rs in complete] for of in (_ttft, _token, _gaps))
    return LoadResult(
        rate=rate,
        ttft_p50=_over(ttft, 50),
        ttft_p99=_over(ttft, 99),
        token_p50=_over(token, 50),
        token_p99=_over(token, 99),
        gap_p50=_over(gap, 50),
        gap_p99=_over(gap, 99),
        per_user=_over([[1e3 / ms for ms in values if ms > 0] for values in token], 50),
        tokens_per_s=spread(speeds),
        per_device=spread([speed / devices for speed in speeds]) if devices else None,
        lag_p99=_over([_ms(_lag, run["requests"]) for run in runs], 99),
        answered=sum(map(len, complete)),
        errors=dict(errors),
        repetitions=len(runs),
    )


def _ms(of: Callable[[dict[str, Any]], list[float]], requests: Sequence[dict[str, Any]]) -> list[float]:
    return [1e3 * seconds for request in requests for seconds in of(request)]


def _ttft(request: dict[str, Any]) -> list[float]:
    return [request["parts"][0] - request["due"]] if request["parts"] else []


def _token(request: dict[str, Any]) -> list[float]:
    parts, tokens = request["parts"], request["completion_tokens"]
    return [(parts[-1] - parts[0]) / (tokens - 1)] if len(parts) > 1 and tokens > 1 else []


def _gaps(request: dict[str, Any]) -> list[float]:
    return [after - before for before, after in pairwise(request["parts"])]


def _lag(request: dict[str, Any]) -> list[float]:
    return [max(0.0, request["asked"] - request["due"])]


def _over(samples: Sequence[Sequence[float]], percent: float) -> Spread | None:
    """A percentile of each repetition that has samples."""
    values = [float(np.percentile(one, percent)) for one in samples if one]
    return spread(values) if values else None
