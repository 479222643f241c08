"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.summary import ModeResult
from ssd_cluster.types import Mode

_HEADER = (
    "mode", "T", "batch", "tokens/s (min-max)", "/user", "vs ar", "tokens/round", "acceptance", "hit rate",
    "round ms", "forward", "noise", "process", "verify", "verify %", "wait", "link", "other", "hit path ms",
)  # fmt: skip


def as_json(config: Mapping[str, object], results: Sequence[ModeResult]) -> dict[str, object]:
    """``{"config": ..., "results": [...]}``; figures that a mode does not have are null."""
    return {"config": dict(config), "results": [_entry(result) for result in results]}


def write_json(path: Path, config: Mapping[str, object], results: Sequence[ModeResult]) -> None:
    """Write ``as_json`` to a file, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(as_json(config, results), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def table(results: Sequence[ModeResult], synthetic: bool = False) -> str:
    """One line per result, columns aligned; what controllers planned is the last column, where there are any.

    ``synthetic``: the draft is, and modes that have one are marked.
    """
    rows = [_HEADER, *(_cells(result, _plain(result, results), synthetic) for result in results)]
    if any(result.plans for result in results):
        plans = ["plan (share of rounds)", *(_plan(result) for result in results)]
        rows = [(*row, plan) for row, plan in zip(rows, plans, strict=True)]
    return aligned(rows)


def _entry(result: ModeResult) -> dict[str, object]:
    return {
        "mode": result.mode.value,
        "name": result.label,
        "temperature": result.temperature,
        "batch": result.batch,
        "tokens_per_s": asdict(result.tokens_per_s),
        "per_user": asdict(result.per_user) if result.per_user else None,
        "tokens_per_round": result.tokens_per_round,
        "acceptance": result.acceptance,
        "hit_rate": result.hit_rate,
        "round_ms": result.round_ms,
        "hit_round_ms": result.hit_round_ms,
        "plans": [plan.model_dump() for plan in result.plans],
    }


def _plain(result: ModeResult, results: Sequence[ModeResult]) -> ModeResult | None:
    """Plain decoding of the same work, if it was measured."""
    same = (r for r in results if (r.temperature, r.batch) == (result.temperature, result.batch))
    return next((r for r in same if r.mode is Mode.AR and r.label == Mode.AR), None)


def _cells(result: ModeResult, plain: ModeResult | None, synthetic: bool) -> tuple[str, ...]:
    speed = result.tokens_per_s
    ratio = speed.median / plain.tokens_per_s.median if plain is not None and plain.tokens_per_s.median else None
    ms = result.round_ms
    return (
        f"{result.label} (synthetic)" if synthetic and result.mode is not Mode.AR else result.label,
        f"{result.temperature:g}",
        str(result.batch),
        f"{speed.median:.1f} ({speed.min:.1f}-{speed.max:.1f})",
        _figure(result.per_user.median if result.per_user else None, "{:.1f}"),
        _figure(ratio, "{:.2f}x"),
        f"{result.tokens_per_round:.2f}",
        _figure(result.acceptance, "{:.3f}"),
        _figure(result.hit_rate, "{:.3f}"),
        *(_figure(ms[name], "{:.2f}") for name in ("total", "target_forward", "noise", "process", "verify")),
        _figure(_share(ms["verify"], ms["total"]), "{:.2f}"),
        *(_figure(ms[name], "{:.2f}") for name in ("draft_wait", "link", "other", "hit_path")),
    )


def _share(part: float | None, whole: float | None) -> float | None:
    """Percent."""
    return 100 * part / whole if part is not None and whole else None


def _plan(result: ModeResult) -> str:
    """What the controller planned most, e.g. ``k5 r16 wait (93 %)``."""
    if not result.plans:
        return "-"
    top, rounds = result.plans[0], sum(plan.rounds for plan in result.plans)
    name = f"k{top.k} r{top.rows}{' wait' if top.wait else ''}" if top.k else "plain"
    return f"{name} ({100 * top.rounds / rounds:.0f} %)"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
