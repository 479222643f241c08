"""Stage 4: what the draft is worth with its target: acceptance, tokens per round, step times, predicted speed-up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ssd_cluster.bench.pair import measure_pair
from ssd_cluster.bench.spec import PairOptions
from ssd_cluster.config import SpeculationSettings
from ssd_cluster.distill.settings import DistillSettings

TEMPERATURES = (0.0, 0.7, 1.0)
LOOKAHEAD = 8


def measure_draft(settings: DistillSettings, draft: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the pair on the built-in prompts (``bench.pair``) with 8 proposed tokens per round."""
    options = PairOptions(
        target=settings.target,
        draft=str(draft),
        speculation=SpeculationSettings(k=LOOKAHEAD),
        dtype=settings.dtype,
    )
    pair = measure_pair(options, TEMPERATURES, progress=lambda line: progress(f"report: {line}"))
    report = pair.as_json()
    for entry in report["acceptance"]:
        entry["tokens_per_round_by_k"] = tokens_by_lookahead(entry["kept"])
    return report


def tokens_by_lookahead(kept: Sequence[float]) -> list[float]:
    """Expected tokens per round for K = 1..len(kept): 1 + sum of P(kept >= j) for j <= K."""
    totals, total = [], 1.0
    for share in kept:
        total += share
        totals.append(total)
    return totals


def write_report(report: dict[str, Any], folder: Path) -> None:
    """``report.json``, and ``report.png`` where matplotlib is installed."""
    (folder / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    history = report["history"]
    steps = [h["step"] for h in history]
    for name in ("greedy_match", "top4"):
        left.plot(steps, [h[name] for h in history], label=name.replace("_", " "))
    left.plot(steps, [h["overlap"]["1"] for h in history], label="overlap at T = 1")
    left.set(title="held-out text", xlabel="step", ylim=(0, 1))
    left.legend()
    for entry in report["acceptance"]:
        tokens = entry["tokens_per_round_by_k"]
        right.plot(range(1, len(tokens) + 1), tokens, marker="o", label=f"T = {entry['temperature']:g}")
    right.set(title="tokens per round (coupled)", xlabel="proposed tokens K")
    right.legend()
    figure.savefig(folder / "report.png", dpi=110)
