"""Fallbacks over batch sizes: a table, and speed of one sequence as in the SSD paper's figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.contest.results import Result, figure, grouped, shown
from ssd_cluster.bench.figure import panels, whiskers

RULE = "rule"

_HEADER = ("T", "batch", "policy", "tokens/s (min-max)", "tokens/s/user (min-max)", "vs sd", "vs rule (min-max)",
           "tokens/round", "hit rate [95 %]", "round ms", "waiting ms")  # fmt: skip


def table(results: Sequence[Result]) -> str:
    """One line per temperature, batch and policy."""
    rows: list[Sequence[str]] = [_HEADER]
    for r in results:
        rows.append(
            (
                f"{r.temperature:g}",
                str(r.batch),
                r.name,
                shown(r.tokens_per_s),
                shown(r.per_user),
                figure(r.ratios["sd"].median if "sd" in r.ratios else None, "{:.2f}x"),
                shown(r.ratios.get(RULE), "{:.2f}"),
                f"{r.tokens_per_round:.2f}",
                r.hits.text() if r.hits else "-",
                figure(r.round_ms["total"]),
                figure(r.round_ms["draft_wait"]),
            )
        )
    return aligned(rows, left=3)


def draw(results: Sequence[Result], path: Path) -> None:
    """Tokens/s of one sequence over the batch size, a panel per temperature."""
    by_temperature = grouped(results, lambda r: r.temperature)
    with panels(path, 1, len(by_temperature)) as grid:
        for axes, (temperature, group) in zip(grid[0], by_temperature.items(), strict=True):
            for name, line in grouped(group, lambda r: r.name).items():
                whiskers(axes, [r.batch for r in line], [r.per_user for r in line], name)
            axes.set(title=f"T = {temperature:g}", xlabel="batch", ylabel="tokens/s of one sequence")
            axes.set_xscale("log", base=2)
            axes.legend()
