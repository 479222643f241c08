"""Draws a stretch of a trace: what target and draft did side by side, and when messages left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssd_cluster.bench.tracing.records import Trace, TracedRound
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import LookupResult

_PHASE_COLOURS = {
    "forward": "#3b6ea5",
    "noise": "#76a5af",
    "process": "#5b93c7",
    "verify": "#86b3d9",
    "draft_wait": "#d9534f",
    "link": "#8e7cc3",
    "other": "#c9c9c9",
}
_KIND_COLOURS = {"prefill": "#b0a08a", "glue": "#e3a64a", "tree": "#6aa84f", "jit": "#d9534f"}
_LOOKUP_COLOURS = {
    LookupResult.HIT: "#38761d",
    LookupResult.MISS: "#cc0000",
    LookupResult.LATE: "#e69138",
    LookupResult.STALE: "#674ea7",
}
_TARGET, _LINK, _DRAFT = 2, 1, 0


def draw_timeline(trace: Trace, path: Path, first: int = 0, count: int = 40) -> None:
    """A PNG of ``count`` rounds from round ``first`` on: phases of the target, commits (down) and blocks (up) on the
    link, forwards of the draft where its trace is there, and how every lookup went.

    Raises:
        ConfigError: there is no such round.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rounds = trace.rounds[first : first + count]
    if not rounds:
        raise ConfigError(f"there is no round {first}: the trace has {len(trace.rounds)}", param="first")
    figure = Figure(figsize=(16, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    zero, end = rounds[0].start, rounds[-1].end
    for one in rounds:
        _draw_round(axes, one, zero)
    for step in trace.steps:
        if step.end > zero and step.start < end:
            kinds = sorted({kind for _, kind, _ in step.spans}, key=list(_KIND_COLOURS).index)
            colour = _KIND_COLOURS[kinds[-1]] if kinds else "#c9c9c9"
            axes.broken_barh([_bar(step.start, step.end, zero)], (_DRAFT - 0.3, 0.6), color=colour, ec="white", lw=0.4)
    _arrows(axes, [1e3 * (b.time - zero) for b in trace.blocks if zero <= b.time <= end], up=True)
    _arrows(axes, [1e3 * (one.committed - zero) for one in rounds if one.rows and one.rows[0].session], up=False)
    lanes = ["draft", "link", "target"] if trace.steps else ["draft (no trace)", "link", "target"]
    axes.set_yticks([_DRAFT, _LINK, _TARGET], lanes)
    axes.set(xlabel="ms", ylim=(-0.6, 2.8), xlim=(0, max(1e-3, 1e3 * (end - zero))))
    colours = {**_PHASE_COLOURS, **_KIND_COLOURS, **{result.value: c for result, c in _LOOKUP_COLOURS.items()}}
    axes.legend(
        handles=[Patch(color=colour, label=name.replace("_", " ")) for name, colour in colours.items()],
        ncols=len(colours),
        loc="upper center",
        bbox_to_anchor=(0.5, 1.14),
        fontsize=8,
        frameon=False,
    )
    figure.savefig(path, dpi=110)


def _draw_round(axes: Any, one: TracedRound, zero: float) -> None:
    before = one.start
    for phase, end in one.laps:
        axes.broken_barh([_bar(before, end, zero)], (_TARGET - 0.3, 0.6), color=_PHASE_COLOURS[phase])
        before = end
    found = [row.lookup for row in one.rows if row.lookup is not None]
    for index, result in enumerate(found):
        height = _TARGET + 0.4 + 0.3 * index / max(1, len(found))
        axes.plot(1e3 * (one.committed - zero), height, "o", ms=4, color=_LOOKUP_COLOURS[result])
    axes.axvline(1e3 * (one.start - zero), color="#e8e8e8", lw=0.6, zorder=0)


def _arrows(axes: Any, times: list[float], *, up: bool) -> None:
    start, end = (_LINK - 0.6, _LINK + 0.6) if up else (_LINK + 0.6, _LINK - 0.6)
    for time in times:
        colour = "#6aa84f" if up else "#3b6ea5"
        axes.annotate("", (time, end), (time, start), arrowprops={"arrowstyle": "->", "color": colour, "lw": 0.8})


def _bar(start: float, end: float, zero: float) -> tuple[float, float]:
    return 1e3 * (start - zero), 1e3 * (end - start)
