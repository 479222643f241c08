"""Curves of ``bench pool`` as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssd_cluster.bench.figure import panels, whiskers
from ssd_cluster.bench.pool.clients import Client
from ssd_cluster.bench.pool.tables import COLUMNS, Measured

CURVES = {"capacity": 2, "latency": 1}
"""Figures that are drawn, and how many panels each takes."""
_SPEED = "tokens/s per sequence"


def draw(figures: Mapping[str, Sequence[Measured]], path: Path) -> None:
    """Capacity over sequences and speed over latency, with the range of the repetitions as bars."""
    shown = [name for name in CURVES if name in figures]
    with panels(path, 1, sum(CURVES[name] for name in shown)) as grid:
        row = list(grid[0])
        if "capacity" in shown:
            _capacity(row.pop(0), row.pop(0), figures["capacity"])
        if "latency" in shown:
            _latency(row.pop(0), figures["latency"])


def _capacity(speeds: Any, shares: Any, measured: Sequence[Measured]) -> None:
    x = [float(one.cell.sequences) for one in measured]
    _line(speeds, x, measured, _SPEED)
    for name in ("hits per round", "late", "draft busy", "targets' CPU"):
        _line(shares, x, measured, name)
    for panel in (speeds, shares):
        panel.set_xscale("log", base=2)
        panel.set(xlabel="sequences on one draft", ylim=(0, None))
        panel.legend()


def _latency(panel: Any, measured: Sequence[Measured]) -> None:
    for client in (Client.PUSH, Client.PULL):
        line = [one for one in measured if one.cell.linked and one.cell.plans[0].client is client]
        _line(panel, [one.cell.plans[0].one_way_ms for one in line], line, _SPEED, client.value)
    plain = measured[0].spread(COLUMNS[_SPEED][0])
    if plain is not None:
        panel.axhline(plain.median, linestyle="--", color="grey", label="ar")
    panel.set(xlabel="ms added one way", ylabel=_SPEED, ylim=(0, None))
    panel.legend()


def _line(panel: Any, x: Sequence[float], measured: Sequence[Measured], column: str, label: str | None = None) -> None:
    spreads = [(at, found) for at, one in zip(x, measured, strict=True) if (found := one.spread(COLUMNS[column][0]))]
    whiskers(panel, [at for at, _ in spreads], [found for _, found in spreads], label or column)
