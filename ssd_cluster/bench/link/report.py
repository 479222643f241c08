"""Round trips and bytes of every backend: a table and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.contest.results import shown, spread
from ssd_cluster.bench.figure import panels
from ssd_cluster.bench.summary import Spread

_HEADER = ("payload", "backend", "p50 us (min-max)", "p99 us (min-max)", "commit bytes", "blocks bytes", "law bytes",
           "beside the stream")  # fmt: skip


@dataclass(frozen=True, slots=True)
class LinkResult:
    """One payload over one backend.

    Attributes:
        p50_us, p99_us: of a round trip, over repetitions.
        commit_bytes, blocks_bytes, law_bytes: of a message's frame; None where messages are no bytes, or there is none.
        beside_bytes: of one law on the tensor channel.
    """

    payload: str
    backend: str
    p50_us: Spread
    p99_us: Spread
    commit_bytes: int | None
    blocks_bytes: int | None
    law_bytes: int | None
    beside_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def percentiles(repetitions: Sequence[Sequence[float]]) -> tuple[Spread, Spread]:
    """p50 and p99 in microseconds over repetitions of round trips in seconds."""
    p50, p99 = (spread([1e6 * float(np.percentile(trips, p)) for trips in repetitions]) for p in (50, 99))
    return p50, p99


def table(results: Sequence[LinkResult]) -> str:
    """One line per payload and backend."""
    rows: list[Sequence[str]] = [_HEADER]
    for r in results:
        sizes = (r.commit_bytes, r.blocks_bytes, r.law_bytes, r.beside_bytes)
        numbers = (shown(r.p50_us, "{:.0f}"), shown(r.p99_us, "{:.0f}"))
        rows.append((r.payload, r.backend, *numbers, *("-" if size is None else str(size) for size in sizes)))
    return aligned(rows, left=2)


def draw(results: Sequence[LinkResult], path: Path) -> None:
    """Median round trip of every backend with its p99, a panel per payload."""
    payloads = list(dict.fromkeys(r.payload for r in results))
    with panels(path, 1, len(payloads)) as grid:
        for axes, payload in zip(grid[0], payloads, strict=True):
            group = [r for r in results if r.payload == payload]
            names = [r.backend for r in group]
            axes.bar(names, [r.p50_us.median for r in group], label="p50")
            axes.plot(names, [r.p99_us.median for r in group], linestyle="", marker="_", markersize=24, label="p99")
            axes.set_yscale("log")
            axes.set(title=payload, ylabel="round trip, us")
            axes.legend()
