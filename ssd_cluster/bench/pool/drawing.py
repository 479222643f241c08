"""Curves of ``bench pool`` as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_cluster.bench.pool.clients import Client
from ssd_cluster.bench.pool.tables import COLUMNS, Figure, Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = ("capacity", "latency")


def draw(figures: Mapping[str, Sequence[Measured]], path: Path) -> None:
    """Capacity over sequences and speed over latency, with the range of the repetitions as bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    shown = [name for name in CURVES if figures.get(name)]
    canvas = Canvas(figsize=(6 * (len(shown) + ("capacity" in shown)), 4), layout="constrained")
    FigureCanvasAgg(canvas)
    panels: list[Axes] = list(canvas.subplots(1, len(shown) + ("capacity" in shown), squeeze=False)[0])
    if "capacity" in shown:
        _capacity(panels.pop(0), panels.pop(0), figures["capacity"])
    if "latency" in shown:
        _latency(panels.pop(0), figures["latency"])
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)


def _capacity(speeds: Axes, shares: Axes, measured: Sequence[Measured]) -> None:
    x = [float(one.cell.sequences) for one in measured]
    _line(speeds, x, measured, "tokens/s per sequence")
    for name in ("hits per round", "late", "draft busy", "targets' CPU"):
        _line(shares, x, measured, name)
    for panel in (speeds, shares):
        panel.set_xscale("log", base=2)
        panel.set(xlabel="sequences on one draft", ylim=(0, None))
        panel.legend()


def _latency(panel: Axes, measured: Sequence[Measured]) -> None:
    for client in (Client.PUSH, Client.PULL):
        line = [one for one in measured if one.cell.linked and one.cell.plans[0].client is client]
        _line(panel, [one.cell.plans[0].one_way_ms for one in line], line, "tokens/s per sequence", client.value)
    plain = measured[0].spread(COLUMNS["tokens/s per sequence"][0])
    if plain is not None:
        panel.axhline(plain.median, linestyle="--", color="grey", label="ar")
    panel.set(xlabel="ms added one way", ylabel="tokens/s per sequence", ylim=(0, None))
    panel.legend()


def _line(panel: Axes, x: Sequence[float], measured: Sequence[Measured], column: str, label: str | None = None) -> None:
    figure: Figure = COLUMNS[column][0]
    spreads = [one.spread(figure) for one in measured]
    points = [(at, spread) for at, spread in zip(x, spreads, strict=True) if spread is not None]
    middle = [spread.median for _, spread in points]
    bars = [[s.median - s.least for _, s in points], [s.most - s.median for _, s in points]]
    panel.errorbar([at for at, _ in points], middle, yerr=bars, marker="o", capsize=3, label=label or column)
