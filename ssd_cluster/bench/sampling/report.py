"""Hit rate, acceptance and predicted speed over C: a table, the fastest rule, and the figure of the SSD paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_cluster.bench.clusters import Estimate, ratio
from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.rules.plan import Cell, Prompt
from ssd_cluster.bench.sampling.outcomes import hits_of_plan, hits_of_width, outcomes_of
from ssd_cluster.bench.store import Store
from ssd_cluster.config import FanoutLaw
from ssd_cluster.speculation.fanout import make_planner
from ssd_cluster.speculation.speed import PairTimes, Prediction, acceptance_from_tokens, predict

_HEADER = ("T", "rule", "C", "tokens/round [95 %]", "acceptance", "hits F [95 %]", "hits R [95 %]", "ssd tokens/s",
           "sd tokens/s", "prompts")  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """One rule at one temperature and C.

    Attributes:
        tokens: per round, t* included.
        acceptance: the constant acceptance per token that gives as many.
        hits_f: share of outcomes among the F best guesses of their kept length.
        hits_r: share of outcomes among the R guesses that the planner chose.
        predicted: speeds with misses that wait for a chain, at hit rate ``hits_r``.
    """

    cell: Cell
    tokens: Estimate
    acceptance: float
    hits_f: Estimate
    hits_r: Estimate
    predicted: Prediction
    prompts: int

    def as_json(self) -> dict[str, Any]:
        terms = self.cell.terms
        return {
            "rule": self.cell.rule,
            "temperature": terms.temperature,
            "k": terms.k,
            "c": terms.c,
            "f": terms.f,
            "tokens_per_round": self.tokens.as_json(),
            "acceptance": self.acceptance,
            "hits_f": self.hits_f.as_json(),
            "hits_r": self.hits_r.as_json(),
            "predicted_tokens_per_s": {"ssd": self.predicted.ssd, "sd": self.predicted.sd, "ar": self.predicted.ar},
            "prompts": self.prompts,
        }


def summarise(
    cells: Sequence[Cell],
    prompts: Sequence[Prompt],
    store: Store,
    times: Mapping[str, float],
    rows: int,
    law: FanoutLaw,
) -> list[SamplingResult]:
    """Results of the cells that have records.

    Args:
        cells: in the order of the table.
        prompts: of this run.
        store: records.
        times: ``PairTimes`` in seconds.
        rows: R.
        law: of the planner.
    """
    results = []
    for cell in cells:
        records = store.all([cell.key(prompt) for prompt in prompts])
        outcomes = [outcomes_of(record) for record in records]
        tokens = ratio([(r["tokens"], r["rounds"]) for r in records])
        hits_f = ratio(hits_of_width(outcomes, cell.terms.f))
        hits_r = ratio(hits_of_plan(outcomes, make_planner(law), rows))
        if tokens is None or hits_f is None or hits_r is None:
            continue
        acceptance = acceptance_from_tokens(tokens.value, cell.terms.k)
        rule_s = sum(r["rule_s"] for r in records) / sum(r["rounds"] for r in records)
        measured = PairTimes(**{**times, "verify": times["verify"] + rule_s})
        predicted = predict(measured, acceptance, hits_r.value, cell.terms.k)
        results.append(SamplingResult(cell, tokens, acceptance, hits_f, hits_r, predicted, len(records)))
    return results


def table(results: Sequence[SamplingResult]) -> str:
    """One line per rule, temperature and C."""
    rows: list[Sequence[str]] = [_HEADER]
    for r in results:
        rows.append(
            (
                f"{r.cell.terms.temperature:g}",
                r.cell.rule,
                f"{r.cell.terms.c:g}",
                r.tokens.text(),
                f"{r.acceptance:.3f}",
                r.hits_f.text(),
                r.hits_r.text(),
                f"{r.predicted.ssd:.2f}",
                f"{r.predicted.sd:.2f}",
                str(r.prompts),
            )
        )
    return aligned(rows, left=2)


def fastest(results: Sequence[SamplingResult]) -> list[str]:
    """Per temperature the rule and C of the highest predicted speed, and the best of every other rule."""
    lines = [f"plain decoding: {results[0].predicted.ar:.2f} tokens/s; all speeds at batch 1"] if results else []
    for temperature in dict.fromkeys(r.cell.terms.temperature for r in results):
        best: dict[str, SamplingResult] = {}
        for r in sorted(results, key=lambda r: -r.predicted.ssd):
            if r.cell.terms.temperature == temperature:
                best.setdefault(r.cell.rule, r)
        named = [f"{r.cell.rule} (C = {r.cell.terms.c:g}) {r.predicted.ssd:.2f}" for r in best.values()]
        lines.append(f"T = {temperature:g}, predicted tokens/s, fastest first: {', '.join(named)}")
    return lines


def draw(results: Sequence[SamplingResult], path: Path) -> None:
    """Per temperature: hit rate against acceptance along C, and predicted speed over C."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    temperatures = list(dict.fromkeys(r.cell.terms.temperature for r in results))
    figure = Figure(figsize=(11, 4 * len(temperatures)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(temperatures), 2, squeeze=False)
    for (trade, speed), temperature in zip(panels, temperatures, strict=True):
        for rule in dict.fromkeys(r.cell.rule for r in results):
            line = [r for r in results if (r.cell.rule, r.cell.terms.temperature) == (rule, temperature)]
            line.sort(key=lambda r: r.cell.terms.c)
            c = [r.cell.terms.c for r in line]
            trade.plot([r.acceptance for r in line], [r.hits_r.value for r in line], marker="o", label=rule)
            for x, r in zip(c, line, strict=True):
                trade.annotate(f"{x:g}", (r.acceptance, r.hits_r.value), textcoords="offset points", xytext=(4, 4))
            speeds = [r.predicted.ssd for r in line]
            if len(line) == 1:  # the coupled rule has no C
                speed.axhline(speeds[0], linestyle="--", color=trade.lines[-1].get_color(), label=rule)
            else:
                speed.plot(c, speeds, marker="o", color=trade.lines[-1].get_color(), label=rule)
        trade.set(title=f"T = {temperature:g}", xlabel="acceptance per token", ylabel="hit rate (points: C)")
        speed.set(title=f"T = {temperature:g}", xlabel="C", ylabel="predicted tokens/s")
        trade.legend()
        speed.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
