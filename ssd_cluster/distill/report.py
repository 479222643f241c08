"""Stage 4: what the draft is worth with its target: acceptance, tokens per round, step times, predicted speed-up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ssd_cluster.bench.pair import (
    PROMPTS,
    kept_shares,
    measure_pair,
    median_time,
    on_own_thread,
    tree_time,
    try_out,
)
from ssd_cluster.bench.spec import PairOptions, default_cores, engine_spec
from ssd_cluster.config import ModelSettings, SpeculationSettings
from ssd_cluster.distill.settings import DistillSettings
from ssd_cluster.model.runner import load_runner
from ssd_cluster.types import Mode, ProposalKind

TEMPERATURES = (0.0, 0.7, 1.0)
LOOKAHEAD = 8
WHOLE_CHAINS_MS = 10_000  # on a busy machine the default wait cuts chains short, and acceptance would look too low
ROWS = (1, 2, 4, 8, 16, 32)


def measure_draft(settings: DistillSettings, draft: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the pair on the built-in prompts (``bench.pair``) with 8 proposed tokens per round, and time the draft.

    ``acceptance`` is that of ``coupled`` proposals, ``ratio`` that of the block rule with sparse laws (at temperature 0
    both are the same).
    """
    options = PairOptions(
        target=settings.target,
        draft=str(draft),
        speculation=SpeculationSettings(k=LOOKAHEAD, wait_ms=WHOLE_CHAINS_MS),
        dtype=settings.dtype,
    )
    pair = measure_pair(
        options, TEMPERATURES, settings.report.max_tokens, progress=lambda line: progress(f"report: {line}")
    )
    report = pair.as_json()
    for entry in report["acceptance"]:
        entry["tokens_per_round_by_k"] = tokens_by_lookahead(entry["kept"])
    progress("report: answering again with a ratio rule")
    report["ratio"] = _ratio_acceptance(options, settings.report.max_tokens)
    progress("report: timing draft steps")
    model = ModelSettings(path=str(draft), dtype=settings.dtype, cores=default_cores()[0])
    report["step"] = on_own_thread(step_times, model)
    report["step"]["share_of_target"] = report["step"]["rows_ms"]["1"] / report["times_ms"]["plain"]
    return report


def _ratio_acceptance(options: PairOptions, max_tokens: int) -> list[dict[str, Any]]:
    speculation = SpeculationSettings(k=LOOKAHEAD, kind=ProposalKind.SPARSE, wait_ms=WHOLE_CHAINS_MS)
    spec = engine_spec(Mode.SD, options.model_copy(update={"speculation": speculation}))
    found = []
    for temperature, stats in try_out(spec, PROMPTS, [t for t in TEMPERATURES if t > 0], max_tokens).items():
        kept = kept_shares(stats.acceptance_histogram)
        found.append(
            {
                "temperature": temperature,
                "kept": kept,
                "tokens_per_round": stats.mean_acceptance_length,
                "tokens_per_round_by_k": tokens_by_lookahead(kept),
            }
        )
    return found


def tokens_by_lookahead(kept: Sequence[float]) -> list[float]:
    """Expected tokens per round for K = 1..8: 1 + sum of P(kept >= j) for j <= K; ``kept`` ends where none was seen."""
    totals, total = [], 1.0
    for share in [*kept, *[0.0] * (LOOKAHEAD - len(kept))]:
        total += share
        totals.append(total)
    return totals


def step_times(model: ModelSettings) -> dict[str, Any]:
    """Median milliseconds of a step of 1..32 branches behind 256 tokens, and of reading that many bytes of weights."""
    runner = load_runner(model, tail_slots=max(ROWS), tail_depth=1)
    try:
        runner.pin()
        rows = {str(n): 1e3 * tree_time(runner, n) for n in ROWS}
        config = runner.config
        per_layer = config.hidden * config.head_dim * (2 * config.n_heads + 2 * config.n_kv_heads)
        per_layer += 3 * config.hidden * config.intermediate
        columns = config.vocab_size if runner.output_ids is None else len(runner.output_ids)
        size = runner.dtype.itemsize * (config.n_layers * per_layer + columns * config.hidden)
        return {"rows_ms": rows, "weight_bytes": size, "read_ms": 1e3 * _read_time(size, runner.device)}
    finally:
        runner.close()


def _read_time(size: int, device: torch.device) -> float:
    memory = torch.ones(size // 8, dtype=torch.int64, device=device)  # zeros would all be one page
    return median_time(lambda: int(memory.sum()))


def draw_report(report: dict[str, Any], folder: Path) -> None:
    """``report.json`` in ``folder``, and ``report.png`` where matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
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
    for entry in report["ratio"]:
        tokens = entry["tokens_per_round_by_k"]
        right.plot(range(1, len(tokens) + 1), tokens, linestyle=":", label=f"T = {entry['temperature']:g}, ratio rule")
    right.set(title="tokens per round", xlabel="proposed tokens K")
    right.legend()
    figure.savefig(folder / "report.png", dpi=110)


def write_report(report: Path, out: Path) -> None:
    """Copy the files of a drawn report into the folder ``out``."""
    for name in ("report.json", "report.png"):
        if (report / name).exists():
            shutil.copy(report / name, out / name)
