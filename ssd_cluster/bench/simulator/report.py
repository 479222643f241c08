"""Simulations as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssd_cluster.bench.simulator.sweep import Point
from ssd_cluster.types import Mode

_HEADER = (
    "mode", "tokens/s", "per sequence", "vs ar", "tokens/round", "acceptance", "hit rate", "late", "draft use",
    "rows/step", "round ms", "wait ms", "link kB/s",
)  # fmt: skip


def table(points: Sequence[Point]) -> str:
    """One line per simulation: swept values, then figures."""
    names = list(points[0].parameters)
    carried = any(point.carried is not None for point in points)
    rows = [(*names, *_HEADER, *(["sequences/draft"] if carried else []))]
    for point in points:
        last = [_figure(point.carried, "{}")] if carried else []
        rows.append((*point.parameters.values(), *_cells(point, _plain(point, points)), *last))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns, the first row as header."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _cells(point: Point, plain: Point | None) -> list[str]:
    r = point.result
    ratio = r.tokens_per_s / plain.result.tokens_per_s if plain is not None else None
    return [
        r.mode.value,
        f"{r.tokens_per_s:.1f}",
        f"{r.per_sequence:.1f}",
        _figure(ratio, "{:.2f}x"),
        f"{r.tokens_per_round:.2f}",
        _figure(r.acceptance, "{:.3f}"),
        _figure(r.hit_rate, "{:.3f}"),
        _figure(r.late_rate, "{:.3f}"),
        _figure(r.draft_utilisation, "{:.2f}"),
        _figure(r.rows_per_step, "{:.1f}"),
        f"{r.round_ms:.2f}",
        f"{r.wait_ms:.2f}",
        f"{r.link_bytes_per_s / 1e3:.1f}",
    ]


def _plain(point: Point, points: Sequence[Point]) -> Point | None:
    """Plain decoding at the same swept values, if it was simulated."""
    same = (other for other in points if other.parameters == point.parameters)
    return next((other for other in same if other.result.mode is Mode.AR), None)


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write to a file, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def draw(points: Sequence[Point], path: Path) -> None:
    """Speed per sequence, and hit rate with draft utilisation, over the first swept setting (or the modes) as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    names = list(points[0].parameters)
    if not names:
        left.bar([p.result.mode.value for p in points], [p.result.per_sequence for p in points])
        shown = [p for p in points if p.result.hit_rate is not None]
        right.bar([f"{p.result.mode.value} hits" for p in shown], [p.result.hit_rate for p in shown])
        right.bar(["draft use"] * len(shown), [p.result.draft_utilisation for p in shown])
    for label, line in _lines(points).items() if names else ():
        x = _axis([p.parameters[names[0]] for p in line])
        left.plot(x, [p.result.per_sequence for p in line], marker="o", label=label)
        if line[0].result.hit_rate is not None:
            right.plot(x, [p.result.hit_rate for p in line], marker="o", label=f"hit rate {label}")
            right.plot(x, [p.result.draft_utilisation for p in line], ls="--", label=f"draft use {label}")
    left.set(title="tokens/s per sequence", xlabel=names[0] if names else "", ylim=(0, None))
    right.set(title="hit rate, draft utilisation", xlabel=names[0] if names else "", ylim=(0, 1.02))
    if names:
        left.legend()
        right.legend()
    figure.savefig(path, dpi=110)


def _lines(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points that differ in the first swept setting only, by what they share."""
    lines: dict[str, list[Point]] = {}
    for point in points:
        others = [f"{name}={value}" for name, value in list(point.parameters.items())[1:]]
        lines.setdefault(" ".join([point.result.mode.value, *others]), []).append(point)
    return lines


def _axis(values: Sequence[str]) -> list[float] | list[str]:
    try:
        return [float(value) for value in values]
    except ValueError:
        return list(values)
