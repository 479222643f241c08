"""Fan-out laws over budgets: a table, and the two figures of the SSD paper: misses and speed over the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.contest.results import Result, figure, grouped, shown
from ssd_cluster.bench.figure import panels, whiskers
from ssd_cluster.config import FanoutLaw
from ssd_cluster.types import Mode

_HEADER = ("T", "law", "rows", "hit rate [95 %]", "tokens/round", "tokens/s (min-max)", "vs sd (min-max)",
           "vs uniform (min-max)", "round ms", "waiting ms")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Guesses:
    """A law and how many outcomes are guessed per round."""

    law: FanoutLaw
    rows: int

    @property
    def name(self) -> str:
        return f"{self.law.value} R={self.rows}"


def table(known: Mapping[str, Guesses], results: Sequence[Result]) -> str:
    """One line per temperature, budget and law; ``known``: what the names of entries stand for, baselines left out."""
    rows: list[Sequence[str]] = [_HEADER]
    for r in results:
        guesses = known.get(r.name)
        uniform = Guesses(FanoutLaw.UNIFORM, guesses.rows).name if guesses else ""
        rows.append(
            (
                f"{r.temperature:g}",
                guesses.law.value if guesses else r.name,
                str(guesses.rows) if guesses else "-",
                r.hits.text() if r.hits else "-",
                f"{r.tokens_per_round:.2f}",
                shown(r.tokens_per_s),
                shown(r.ratios.get(Mode.SD.value), "{:.2f}"),
                shown(r.ratios.get(uniform), "{:.2f}"),
                figure(r.round_ms["total"]),
                figure(r.round_ms["draft_wait"]),
            )
        )
    return aligned(rows, left=2)


def draw(known: Mapping[str, Guesses], results: Sequence[Result], path: Path) -> None:
    """Per temperature: miss rate over the budget, both logarithmic, and speed over the budget."""
    by_temperature = grouped(results, lambda r: r.temperature)
    with panels(path, len(by_temperature), 2) as grid:
        for (misses, speed), (temperature, group) in zip(grid, by_temperature.items(), strict=True):
            _draw_one(misses, speed, known, group)
            misses.set(title=f"T = {temperature:g}", xlabel="guessed outcomes per round", ylabel="miss rate")
            speed.set(title=f"T = {temperature:g}", xlabel="guessed outcomes per round", ylabel="tokens/s")
            misses.set_xscale("log", base=2)
            misses.set_yscale("log")
            speed.set_xscale("log", base=2)
            misses.legend()
            speed.legend()


def _draw_one(misses: Any, speed: Any, known: Mapping[str, Guesses], group: Sequence[Result]) -> None:
    for law, line in grouped([r for r in group if r.name in known], lambda r: known[r.name].law).items():
        budgets = [float(known[r.name].rows) for r in line]
        colour = whiskers(speed, budgets, [r.tokens_per_s for r in line], law.value)
        missed = [1 - r.hits.value if r.hits else float("nan") for r in line]
        misses.plot(budgets, missed, marker="o", color=colour, label=law.value)
    for r in group:
        if r.name not in known:
            style = "--" if r.name == Mode.SD.value else ":"
            speed.axhline(r.tokens_per_s.median, linestyle=style, color="grey", label=r.name)
