"""Predict what targets and drafts would do, from measured or given times, acceptance and hit statistics."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_cluster.config import FanoutLaw, MissPolicy
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ssd_cluster.bench.simulator.run import Laws
    from ssd_cluster.bench.simulator.sweep import Point

_LAWS = ", ".join(law.value for law in FanoutLaw)
_POLICIES = ", ".join(policy.value for policy in MissPolicy)
_TIMES = "milliseconds, or TOKENS:MS/TOKENS:MS/..."
OPTIONS = {
    "targets": "target replicas",
    "drafts": "draft replicas that they share",
    "batch": "sequences per target",
    "k": "tokens proposed per round",
    "rows": "guessed outcomes per sequence and round",
    "fanout": _LAWS,
    "miss_policy": _POLICIES,
    "wait_ms": "longest wait for a chain",
    "chain_k": "most tokens of such a chain (default: k)",
    "verify_ms": f"one target forward: {_TIMES}",
    "step_ms": f"one draft forward: {_TIMES}",
    "overhead_ms": "of a target's round outside of the forward",
    "one_way_ms": "latency of the link, one way",
    "mbit_s": "bandwidth of the link",
    "acceptance": "of a proposed token; A/B/C by position",
    "hits": "right guesses of t* after a cached proposal: RATE, or C/C_FULL/R for misses of C F^-R",
    "hits_after_backup": "the same after any other proposal",
    "fallback_tokens": "length of a local proposal after a miss that does not wait",
    "fallback_acceptance": "of its tokens",
    "max_step_rows": "most rows of one draft forward",
    "row_credit": "most rows that one target may have at work on a draft",
    "warm_up": "rounds before measuring",
    "rounds": "measured rounds of each target",
    "seed": "of all draws",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--modes", default="ar,sd,ssd", help="comma-separated: ar, sd, ssd (default %(default)s)")
    for name, text in OPTIONS.items():
        add(f"--{name.replace('_', '-')}", default=None, metavar="X", help=text)
    add(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=V1,V2,...",
        help="vary a setting; may be repeated",
    )
    add(
        "--capacity",
        action="store_true",
        help="also find how many sequences one draft carries (hit rate 10 %% down)",
    )
    add("--preset", default=None, help="start from a row of the SSD paper, e.g. paper-llama-70b, and compare with it")
    add("--trace", type=Path, default=None, metavar="FILE", help="times and outcomes of a recorded round trace")
    add("--from", dest="bench", type=Path, default=None, metavar="BENCH.json", help="predict what bench has measured")
    add("--within", type=float, default=None, metavar="PERCENT", help="fail if a compared speed is further off")
    add("--json", type=Path, default=None, metavar="OUT")
    add("--plot", type=Path, default=None, metavar="OUT.png")


def run(arguments: argparse.Namespace) -> int:
    """Simulate, print a table, write the files that are asked for. Exit code 1: not within ``--within``.

    Raises:
        ConfigError: an option or a file is wrong.
    """
    given = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    if arguments.within is not None and arguments.bench is None and arguments.preset is None:
        raise ConfigError("--within compares with --from or --preset; give one of them", param="within")
    if arguments.bench is not None:
        return _compare_bench(arguments, given)
    return _sweep(arguments, given)


def _compare_bench(arguments: argparse.Namespace, given: dict[str, str]) -> int:
    from ssd_cluster.bench.simulator.from_bench import compare, comparison_rows
    from ssd_cluster.bench.simulator.report import aligned, write_json

    for name in ("sweep", "capacity", "preset", "trace", "plot"):
        if getattr(arguments, name):
            raise ConfigError(f"--{name} does not go with --from", param=name)
    found = compare(arguments.bench, given, _progress)
    print(aligned(comparison_rows(found)))
    if arguments.json is not None:
        entries = [
            {"mode": c.mode.value, "temperature": c.temperature, "batch": c.batch}
            | {"measured": c.measured, "predicted": c.predicted, "error": c.error}
            for c in found
        ]
        write_json(arguments.json, {"bench": str(arguments.bench), "settings": given, "comparison": entries})
    return _verdict(arguments.within, [c.error for c in found])


def _sweep(arguments: argparse.Namespace, given: dict[str, str]) -> int:
    from ssd_cluster.bench.command import parse_modes
    from ssd_cluster.bench.simulator.report import draw, table, write_json
    from ssd_cluster.bench.simulator.sweep import parse_sweep, run_sweep

    modes = parse_modes(arguments.modes)
    sweeps = [parse_sweep(text) for text in arguments.sweep]
    base, laws = _base(arguments, {*given, *(name for name, _ in sweeps)})
    base |= given
    points = run_sweep(base, sweeps, modes, capacity=arguments.capacity, laws=laws, progress=_progress)
    print(table(points))
    if arguments.json is not None:
        settings = {name: str(value) for name, value in base.items()}
        write_json(arguments.json, {"settings": settings, "points": [point.as_json() for point in points]})
    if arguments.plot is not None:
        draw(points, arguments.plot)
    return _verdict(arguments.within, _compare_published(arguments.preset, points) if arguments.preset else [])


def _base(arguments: argparse.Namespace, chosen: set[str]) -> tuple[dict[str, Any], Laws]:
    """What the options start from: a preset, a trace or nothing; and the law of outcomes."""
    from ssd_cluster.bench.simulator.from_trace import RECORDED, trace_laws, trace_settings
    from ssd_cluster.bench.simulator.laws import PowerLaws
    from ssd_cluster.bench.tracing.records import read_trace

    if arguments.trace is None:
        return _preset(arguments.preset), PowerLaws
    if arguments.preset is not None:
        raise ConfigError("--preset does not go with --trace", param="preset")
    if chosen & RECORDED:
        name = min(chosen & RECORDED)
        raise ConfigError(f"--{name.replace('_', '-')}: outcomes are those of the trace", param=name)
    trace = read_trace(arguments.trace)
    return trace_settings(trace), trace_laws(trace)


def _preset(name: str | None) -> dict[str, Any]:
    from ssd_cluster.bench.simulator.presets import PRESETS

    if name is None:
        return {}
    if name not in PRESETS:
        raise ConfigError(f"--preset is one of {', '.join(PRESETS)}; got {name!r}", param="preset")
    return PRESETS[name].settings()


def _compare_published(name: str, points: Sequence[Point]) -> list[float]:
    """Print ratios beside the paper's, for points without swept values; returns their relative errors."""
    from ssd_cluster.bench.simulator.presets import PRESETS
    from ssd_cluster.bench.simulator.report import aligned

    speeds = {point.result.mode: point.result.tokens_per_s for point in points if not point.parameters}
    rows, errors = [("ratio", "published", "simulated", "error")], []
    for over, under in ((Mode.SSD, Mode.SD), (Mode.SSD, Mode.AR)):
        if over in speeds and under in speeds:
            published = PRESETS[name].published(over) / PRESETS[name].published(under)
            simulated = speeds[over] / speeds[under]
            errors.append(simulated / published - 1)
            figures = (f"{published:.2f}", f"{simulated:.2f}", f"{100 * errors[-1]:+.1f} %")
            rows.append((f"{over.value}/{under.value}", *figures))
    if errors:
        print()
        print(aligned(rows))
    return errors


def _verdict(within: float | None, errors: Sequence[float]) -> int:
    if within is None:
        return 0
    worst = max((abs(error) for error in errors), default=0.0)
    print(f"largest error {100 * worst:.1f} %, allowed {within:g} %")
    return int(100 * worst > within)


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
