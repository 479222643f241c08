"""Measure modes, interleaved in one run, and print a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ssd_cluster.bench.engines import WorkerEngine, start_engines
from ssd_cluster.bench.frontier import draw_frontier
from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.kind_options import add_kind_arguments, speculation_of
from ssd_cluster.bench.measure import measure
from ssd_cluster.bench.options import (
    add_int8,
    add_workload,
    branches,
    cores,
    lookahead,
    machine,
    milliseconds,
    numbers,
    positive,
    progress,
    workload_grid,
)
from ssd_cluster.bench.report import table, write_json
from ssd_cluster.bench.spec import EngineSpec, PairOptions, engine_spec, traced
from ssd_cluster.bench.summary import ModeResult
from ssd_cluster.bench.synthetic.options import add_synthetic, headline, round_check, wanted, write_script
from ssd_cluster.bench.synthetic.script import ScriptFile
from ssd_cluster.bench.workload import load_prompts
from ssd_cluster.config import ControllerSettings, DType, FanoutLaw, MissPolicy, SpeculationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode, ProposalKind

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
    add("--sd-k", type=lookahead, default=None, help="the same in mode sd only (default: --k)")
    add("--rows", type=branches, default=_DEFAULTS.rows, help="guessed outcomes per round (default %(default)s)")
    add_kind_arguments(parser)
    add("--fanout", choices=[law.value for law in FanoutLaw], default=FanoutLaw.MEASURED.value)
    add("--miss-policy", choices=[policy.value for policy in MissPolicy], default=_DEFAULTS.miss_policy.value)
    add("--wait-ms", type=milliseconds, default=_DEFAULTS.wait_ms, help="longest wait for the draft after a miss")
    add("--chain-k", type=positive, default=None, help="tokens of the chain that ssd waits for then (default: --k)")
    add("--trace", type=Path, default=None, metavar="FILE", help="record every round; of out.trace: out-MODE.trace")
    add(
        "--tensor-parallel",
        type=positive,
        default=1,
        metavar="N",
        help="ranks of the target, a process each (default 1)",
    )
    add_int8(parser)
    add("--controller", action="store_true", help="ssd chooses by itself: --k and --rows are then ceilings")
    add("--plot", type=Path, default=None, metavar="OUT.png", help="draw the throughput-latency frontier")
    add_synthetic(parser)
    add("--target-cores", type=cores, default=None, help="CPU cores of the target, e.g. 0,1 (default: the first)")
    add("--draft-cores", type=cores, default=None, help="CPU cores of the draft in mode ssd (default: the second)")
    add("--also-cores", type=cores, default=None, help="run ar and sd once more on these cores, e.g. 0,1")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table, write the files that are asked for.

    Raises:
        ConfigError: an option or the prompt file is wrong.
        StartupError: an engine does not start.
        EngineStopped: an engine fails or hangs.
    """
    modes = parse_modes(arguments.modes)
    workloads = _workloads(arguments)
    batches = [workload.batch for workload in workloads]
    synthetic = wanted(arguments)
    lineup = _lineup(arguments, modes, max(batches))
    with TemporaryDirectory(prefix="ssd-cluster-bench-") as folder:
        if synthetic:
            lineup = _with_script(arguments, lineup, workloads, Path(folder) / "script.json")
        engines = start_engines([spec for _, spec in lineup], progress, [name for name, _ in lineup])
        try:
            results, different = _measure_all(engines, workloads, arguments.repetitions)
        finally:
            for engine in engines:
                engine.close()
    _report(arguments, engines, workloads, results, different, synthetic)
    return 0


def _workloads(arguments: argparse.Namespace) -> list[Workload]:
    prompts = load_prompts(arguments.prompts, arguments.limit)
    temperatures = numbers(arguments.temperature, float, "temperature")
    return workload_grid(arguments, prompts, temperatures, numbers(arguments.batch, positive, "batch"))


def _lineup(arguments: argparse.Namespace, modes: Sequence[Mode], max_batch: int) -> list[tuple[str, EngineSpec]]:
    """Engines by name: one per mode, and those of ``--also-cores``."""
    lineup = []
    for mode in modes:
        options = _pair_options(arguments, mode, max_batch)
        lineup.append((mode.value, traced(engine_spec(mode, options), _trace_of(arguments.trace, mode))))
        if arguments.also_cores is not None and mode is not Mode.SSD:
            name = f"{mode.value} on {','.join(map(str, arguments.also_cores))}"
            wide = options.model_copy(update={"target_cores": arguments.also_cores})
            lineup.append((name, engine_spec(mode, wide)))
    return lineup


def _pair_options(arguments: argparse.Namespace, mode: Mode, max_batch: int) -> PairOptions:
    return PairOptions(
        target=arguments.target,
        draft=arguments.draft,
        speculation=speculation_of(
            arguments,
            k=arguments.sd_k if mode is Mode.SD and arguments.sd_k is not None else arguments.k,
            rows=arguments.rows,
            miss_policy=MissPolicy(arguments.miss_policy),
            wait_ms=arguments.wait_ms,
            chain_k=arguments.chain_k if mode is Mode.SSD else None,
            controller=ControllerSettings(enabled=arguments.controller),
        ),
        fanout=FanoutLaw(arguments.fanout),
        dtype=DType(arguments.dtype),
        target_cores=arguments.target_cores,
        draft_cores=arguments.draft_cores,
        max_batch=max_batch,
        tensor_parallel=arguments.tensor_parallel,
        int8=arguments.int8,
    )


def _with_script(
    arguments: argparse.Namespace, lineup: list[tuple[str, EngineSpec]], workloads: Sequence[Workload], path: Path
) -> list[tuple[str, EngineSpec]]:
    """The same engines with a draft that follows a script, which is recorded first."""
    most = max(workload.batch for workload in workloads)
    plain = engine_spec(Mode.AR, _pair_options(arguments, Mode.AR, most))
    options = [_pair_options(arguments, spec.mode, most) for _, spec in lineup if spec.draft is not None]
    drafted = {one.speculation.k: engine_spec(Mode.SD, one) for one in options}
    script = ScriptFile(acceptance=arguments.synthetic_acceptance, hit=arguments.synthetic_hit, texts=())
    write_script(path, plain, list(drafted.values()), workloads, script, progress)
    return [(name, spec if spec.draft is None else spec.model_copy(update={"script": path})) for name, spec in lineup]


def _report(
    arguments: argparse.Namespace,
    engines: Sequence[WorkerEngine],
    workloads: Sequence[Workload],
    results: Sequence[ModeResult],
    different: dict[str, int],
    synthetic: bool,
) -> None:
    n_prompts = len(workloads[0].prompts)
    config = _configuration(arguments, engines, n_prompts, different)
    if synthetic:
        print(headline(arguments))
    print(table(results, synthetic))
    if any(different.values()):
        print(f"outputs that differ from {engines[0].name}'s, of {n_prompts * len(workloads)}: {different}")
        if arguments.kind != ProposalKind.COUPLED:
            print(f"kind {arguments.kind} keeps the law of the text, not the text, above temperature 0")
    info = next((engine.info for engine in engines if engine.mode is Mode.SSD), {})
    checks = [round_check(result, info, arguments.k, arguments.rows) for result in results] if synthetic else []
    for check in checks:
        if check is not None:
            print(check)
    if arguments.json is not None:
        write_json(arguments.json, config, results)
    if arguments.plot is not None:
        draw_frontier(results, arguments.plot, "synthetic draft, " if synthetic else "")


def _trace_of(path: Path | None, mode: Mode) -> Path | None:
    """A file of each mode's own: ``out.trace`` becomes ``out-ssd.trace``."""
    return path and path.with_name(f"{path.stem}-{mode.value}{path.suffix}")


def _measure_all(
    engines: Sequence[WorkerEngine], workloads: Sequence[Workload], repetitions: int
) -> tuple[list[ModeResult], dict[str, int]]:
    results: list[ModeResult] = []
    different = {engine.name: 0 for engine in engines}
    for workload in workloads:
        progress(f"temperature {workload.temperature:g}, batch {workload.batch}, {len(workload.prompts)} prompts")
        measured = measure(engines, workload, repetitions, progress)
        results += measured.results
        for name, count in measured.different_outputs.items():
            different[name] += count
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
    engines: Sequence[WorkerEngine],
    n_prompts: int,
    different: dict[str, int],
) -> dict[str, object]:
    chosen = {
        name: value
        for name, value in vars(arguments).items()
        if name not in ("command", "benchmark", "run", "json", "plot")
    }
    return {
        **{name: str(value) if isinstance(value, Path) else value for name, value in chosen.items()},
        "n_prompts": n_prompts,
        "different_outputs": different,
        "engines": {engine.name: engine.info for engine in engines},
        "cores": {engine.name: engine.cores for engine in engines},
        "dtype": engines[0].info["dtype"],
        "torch": engines[0].info["torch"],
        **machine(),
    }
