"""The throughput-latency frontier of ``bench modes``: speed of one user against speed of all, over batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_cluster.bench.figure import panels
from ssd_cluster.bench.summary import ModeResult


def draw_frontier(results: Sequence[ModeResult], path: Path, title: str = "") -> None:
    """A panel per temperature, a line per engine, a point per batch size with its range.

    Args:
        results: of ``bench modes``.
        path: PNG file.
        title: stands before the temperature.
    """
    temperatures = list(dict.fromkeys(r.temperature for r in results))
    with panels(path, 1, len(temperatures)) as grid:
        for axes, temperature in zip(grid[0], temperatures, strict=True):
            for label in dict.fromkeys(r.label for r in results):
                line = [r for r in results if (r.label, r.temperature) == (label, temperature)]
                points = [(r.tokens_per_s, r.per_user, r.batch) for r in line if r.per_user is not None]
                axes.errorbar(
                    [every.median for every, _, _ in points],
                    [user.median for _, user, _ in points],
                    xerr=[[s.median - s.min for s, _, _ in points], [s.max - s.median for s, _, _ in points]],
                    yerr=[[s.median - s.min for _, s, _ in points], [s.max - s.median for _, s, _ in points]],
                    marker="o",
                    capsize=2,
                    label=label,
                )
                for every, user, batch in points:
                    place = {"textcoords": "offset points", "xytext": (4, 4), "fontsize": 8}
                    axes.annotate(str(batch), (every.median, user.median), **place)
            axes.set(xlabel="tokens/s of all sequences (points: batch)", ylabel="tokens/s of one sequence")
            axes.set_title(f"{title}T = {temperature:g}")
            axes.legend()
