"""Latencies over the offered rate: a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.contest.results import shown
from ssd_cluster.bench.figure import panels, whiskers
from ssd_cluster.bench.load.figures import LoadResult

_HEADER = ("req/s", "answered", "errors", "TTFT p50 ms", "p99", "per token p50 ms", "p99", "gap p50 ms", "p99",
           "tokens/s/user", "tokens/s", "tokens/s/device", "lag p99 ms")  # fmt: skip


def table(results: Sequence[LoadResult]) -> str:
    """One line per rate."""
    rows: list[Sequence[str]] = [_HEADER]
    for r in results:
        errors = ", ".join(f"{kind}: {count}" for kind, count in sorted(r.errors.items()))
        rows.append(
            (
                f"{r.rate:g}",
                str(r.answered),
                errors or "0",
                *(shown(s, "{:.0f}") for s in (r.ttft_p50, r.ttft_p99)),
                *(shown(s) for s in (r.token_p50, r.token_p99, r.gap_p50, r.gap_p99)),
                *(shown(s) for s in (r.per_user, r.tokens_per_s, r.per_device, r.lag_p99)),
            )
        )
    return aligned(rows)


def draw(results: Sequence[LoadResult], path: Path) -> None:
    """Time to the first token, time per token and throughput over the offered rate."""
    panel_lines = (
        ("TTFT, ms", (("p50", "ttft_p50"), ("p99", "ttft_p99"))),
        ("time per token, ms", (("p50", "token_p50"), ("p99", "token_p99"))),
        ("tokens/s", (("all", "tokens_per_s"), ("one user", "per_user"))),
    )
    with panels(path, 1, len(panel_lines)) as grid:
        for axes, (title, lines) in zip(grid[0], panel_lines, strict=True):
            for label, name in lines:
                there = [(r.rate, getattr(r, name)) for r in results if getattr(r, name) is not None]
                if there:
                    whiskers(axes, [rate for rate, _ in there], [s for _, s in there], label)
            axes.set(title=title, xlabel="requests per second")
            axes.legend()
