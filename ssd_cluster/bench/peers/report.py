"""Peers beside our modes: a table and bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.contest.results import Result, grouped, shown
from ssd_cluster.bench.figure import panels

_HEADER = ("T", "who", "tokens/s (min-max)", "vs ssd (min-max)", "whole answer tokens/s (min-max)", "tokens",
           "tokens/round")  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """One line per temperature and contender."""
    rows: list[Sequence[str]] = [_HEADER]
    for r in results:
        rounds = f"{r.tokens_per_round:.2f}" if r.round_ms["total"] else "-"
        answer = shown(r.answer_speed)
        rows.append(
            (f"{r.temperature:g}", r.name, shown(r.tokens_per_s), shown(r.ratios.get("ssd"), "{:.2f}"), answer,
             str(r.tokens), rounds)
        )  # fmt: skip
    return aligned(rows, left=2)


def draw(results: Sequence[Result], path: Path) -> None:
    """Tokens/s of every contender, a panel per temperature."""
    by_temperature = grouped(results, lambda r: r.temperature)
    with panels(path, 1, len(by_temperature)) as grid:
        for axes, (temperature, group) in zip(grid[0], by_temperature.items(), strict=True):
            speeds = [r.tokens_per_s for r in group]
            middle = [s.median for s in speeds]
            errors = [[s.median - s.min for s in speeds], [s.max - s.median for s in speeds]]
            axes.barh([r.name for r in group], middle, xerr=errors, capsize=3)
            axes.invert_yaxis()
            axes.set(title=f"T = {temperature:g}, batch 1", xlabel="tokens/s while decoding")
