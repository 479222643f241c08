"""Measure modes, interleaved in one run, and print a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ssd_cluster.bench.engines import WorkerEngine, start_engines
from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.kind_options import add_kind_arguments, speculation_of
from ssd_cluster.bench.measure import measure
from ssd_cluster.bench.options import (
    add_workload,
    branches,
    cores,
    lookahead,
    machine,
    milliseconds,
    numbers,
    positive,
    progress,
)
from ssd_cluster.bench.report import table, write_json
from ssd_cluster.bench.spec import PairOptions, engine_spec, traced
from ssd_cluster.bench.summary import ModeResult
from ssd_cluster.bench.workload import load_prompts
from ssd_cluster.config import ControllerSettings, DType, FanoutLaw, MissPolicy, SpeculationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode

_DEFAULTS = SpeculationSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench modes``."""
    add = parser.add_argument
    add("--modes", default="ar,sd,ssd", help="comma-separated: ar, sd, ssd")
    add_workload(parser, max_tokens=128)
    add("--temperature", default="0", help="one temperature or several, comma-separated")
    add("--batch", default="1", help="sequences at a time, one number or several, comma-separated")
    add("--json", type=Path, default=None, metavar="OUT", help="write the results to this file as well")
    add("--repetitions", type=positive, default=5, help="runs of every mode (default %(default)s)")
    add("--k", type=lookahead, default=_DEFAULTS.k, help="tokens proposed per round (default %(default)s)")
    add("--rows", type=branches, default=_DEFAULTS.rows, help="guessed outcomes per round (default %(default)s)")
    add_kind_arguments(parser)
    add("--fanout", choices=[law.value for law in FanoutLaw], default=FanoutLaw.MEASURED.value)
    add("--miss-policy", choices=[policy.value for policy in MissPolicy], default=_DEFAULTS.miss_policy.value)
    add("--wait-ms", type=milliseconds, default=_DEFAULTS.wait_ms, help="longest wait for the draft after a miss")
    add("--trace", type=Path, default=None, metavar="FILE", help="record every round; of out.trace: out-MODE.trace")
    add(
        "--tensor-parallel",
        type=positive,
        default=1,
        metavar="N",
        help="ranks of the target, a process each (default 1)",
    )
    add("--controller", action="store_true", help="ssd chooses by itself: --k and --rows are then ceilings")
    add("--target-cores", type=cores, default=None, help="CPU cores of the target, e.g. 0,1 (default: the first)")
    add("--draft-cores", type=cores, default=None, help="CPU cores of the draft in mode ssd (default: the second)")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON file.

    Raises:
        ConfigError: an option or the prompt file is wrong.
        StartupError: an engine does not start.
        EngineStopped: an engine fails or hangs.
    """
    modes = parse_modes(arguments.modes)
    temperatures = numbers(arguments.temperature, float, "temperature")
    batches = numbers(arguments.batch, positive, "batch")
    prompts = load_prompts(arguments.prompts, arguments.limit)
    workloads = [
        Workload(
            prompts=prompts,
            max_tokens=arguments.max_tokens,
            temperature=temperature,
            top_p=arguments.top_p,
            top_k=arguments.top_k,
            seed=arguments.seed,
            batch=batch,
            raw=arguments.raw,
            ignore_eos=arguments.ignore_eos,
        )
        for temperature in temperatures
        for batch in batches
    ]
    options = PairOptions(
        target=arguments.target,
        draft=arguments.draft,
        speculation=speculation_of(
            arguments,
            k=arguments.k,
            rows=arguments.rows,
            miss_policy=MissPolicy(arguments.miss_policy),
            wait_ms=arguments.wait_ms,
            controller=ControllerSettings(enabled=arguments.controller),
        ),
        fanout=FanoutLaw(arguments.fanout),
        dtype=DType(arguments.dtype),
        target_cores=arguments.target_cores,
        draft_cores=arguments.draft_cores,
        max_batch=max(batches),
        tensor_parallel=arguments.tensor_parallel,
    )
    engines = start_engines(
        [traced(engine_spec(mode, options), _trace_of(arguments.trace, mode)) for mode in modes], progress
    )
    try:
        results, different = _measure_all(engines, workloads, arguments.repetitions)
    finally:
        for engine in engines:
            engine.close()
    config = _configuration(arguments, options, engines, len(prompts), different)
    print(table(results))
    if any(different.values()):
        print(f"outputs that differ from {modes[0].value}'s, of {len(prompts) * len(workloads)}: {different}")
        if options.speculation.ratio:
            print(f"kind {options.speculation.kind.value} keeps the law of the text, not the text, above temperature 0")
    if arguments.json is not None:
        write_json(arguments.json, config, results)
    return 0


def _trace_of(path: Path | None, mode: Mode) -> Path | None:
    """A file of each mode's own: ``out.trace`` becomes ``out-ssd.trace``."""
    return path and path.with_name(f"{path.stem}-{mode.value}{path.suffix}")


def _measure_all(
    engines: Sequence[WorkerEngine], workloads: Sequence[Workload], repetitions: int
) -> tuple[list[ModeResult], dict[str, int]]:
    results: list[ModeResult] = []
    different = {engine.mode.value: 0 for engine in engines}
    for workload in workloads:
        progress(f"temperature {workload.temperature:g}, batch {workload.batch}, {len(workload.prompts)} prompts")
        measured = measure(engines, workload, repetitions, progress)
        results += measured.results
        for mode, count in measured.different_outputs.items():
            different[mode.value] += count
    return results, different


def parse_modes(text: str) -> list[Mode]:
    """``"ar,ssd"`` -> modes, each once.

    Raises:
        ConfigError: a name is unknown or given twice.
    """
    names = [name.strip() for name in text.split(",")]
    known = [mode.value for mode in Mode]
    if any(name not in known for name in names) or len(set(names)) < len(names):
        raise ConfigError(f"--modes takes each of {', '.join(known)} at most once, got {text!r}", param="modes")
    return [Mode(name) for name in names]


def _configuration(
    arguments: argparse.Namespace,
    options: PairOptions,
    engines: Sequence[WorkerEngine],
    n_prompts: int,
    different: dict[str, int],
) -> dict[str, object]:
    chosen = {
        name: value for name, value in vars(arguments).items() if name not in ("command", "benchmark", "run", "json")
    }
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()},
        "n_prompts": n_prompts,
        "different_outputs": different,
        "engines": {engine.mode.value: engine.info for engine in engines},
        "cores": {engine.mode.value: engine.cores for engine in engines},
        "dtype": engines[0].info["dtype"],
        "torch": engines[0].info["torch"],
        **machine(),
    }
