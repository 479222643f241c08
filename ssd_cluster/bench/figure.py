"""Figures as PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DPI = 110


@contextmanager
def panels(path: Path, rows: int, columns: int) -> Iterator[Any]:
    """A grid ``[rows, columns]`` of axes to draw on; written to ``path`` at the end of the block."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * columns, 4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    yield figure.subplots(rows, columns, squeeze=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)


def whiskers(axes: Any, x: list[float], spreads: list[Any], label: str) -> Any:
    """A line through medians with their ranges as error bars; returns its colour."""
    middle = [s.median for s in spreads]
    errors = [[m - s.min for m, s in zip(middle, spreads, strict=True)],
              [s.max - m for m, s in zip(middle, spreads, strict=True)]]  # fmt: skip
    return axes.errorbar(x, middle, yerr=errors, marker="o", capsize=3, label=label).lines[0].get_color()
