"""Options of comparisons, what their file depends on, and how they end."""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ssd_cluster.bench.contest.results import Result, results_of
from ssd_cluster.bench.contest.run import Contest, run_missing
from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.options import cores, machine, milliseconds, numbers, positive, progress, workload_grid
from ssd_cluster.bench.spec import PairOptions
from ssd_cluster.bench.store import Store
from ssd_cluster.bench.workload import load_prompts
from ssd_cluster.config import DType, SpeculationSettings
from ssd_cluster.errors import ConfigError

_DEFAULTS = SpeculationSettings()


def add_contest(parser: argparse.ArgumentParser) -> None:
    """How often, how long, and where results go."""
    add = parser.add_argument
    add("--repetitions", type=positive, default=5, help="runs of everything (default %(default)s)")
    add("--alive", type=positive, default=4, help="engines that are kept running at a time (default %(default)s)")
    add("--minutes", type=float, default=None, help="stop after so long; the same command goes on from there")
    add("--json", type=Path, default=None, metavar="OUT", help="collect results in this file; it is continued if there")
    add("--plot", type=Path, default=None, metavar="OUT.png", help="draw the figure")


def add_cores(parser: argparse.ArgumentParser) -> None:
    """Where the two models compute, and the longest wait for a chain."""
    add = parser.add_argument
    add("--target-cores", type=cores, default=None, help="CPU cores of the target, e.g. 0,1 (default: the first)")
    add("--draft-cores", type=cores, default=None, help="CPU cores of the draft in mode ssd (default: the second)")
    add("--wait-ms", type=milliseconds, default=_DEFAULTS.wait_ms, help="longest wait for the draft after a miss")


def workloads_of(arguments: argparse.Namespace, temperatures: str, batches: str) -> list[Workload]:
    """One workload per temperature and batch size.

    Raises:
        ConfigError: an option or the prompt file is wrong, or a batch is larger than the number of prompts.
    """
    prompts = load_prompts(arguments.prompts, arguments.limit)
    sizes = numbers(batches, positive, "batch")
    if max(sizes) > len(prompts):
        raise ConfigError(f"a batch of {max(sizes)} needs as many prompts, there are {len(prompts)}", param="batch")
    return workload_grid(arguments, prompts, numbers(temperatures, float, "temperature"), sizes)


def pair_options(arguments: argparse.Namespace, speculation: SpeculationSettings, **more: Any) -> PairOptions:
    """The pair that the options name."""
    return PairOptions(
        target=arguments.target,
        draft=arguments.draft,
        speculation=speculation,
        dtype=DType(arguments.dtype),
        target_cores=arguments.target_cores,
        draft_cores=arguments.draft_cores,
        **more,
    )


_SHARED = ("max_tokens", "seed", "top_p", "top_k", "raw", "ignore_eos", "dtype", "target_cores", "draft_cores")


def open_store(arguments: argparse.Namespace, workloads: Sequence[Workload], more: Sequence[str]) -> Store:
    """The file of results.

    Args:
        arguments: of the command.
        workloads: whose prompts the records depend on.
        more: further options that every record depends on.

    Raises:
        ConfigError: it holds results of other settings.
        CheckpointError: a model is missing or broken.
    """
    from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint

    settings: dict[str, Any] = {name: getattr(arguments, name) for name in (*_SHARED, *more)}
    settings |= {
        "benchmark": arguments.benchmark,
        "target": open_checkpoint(resolve_checkpoint(arguments.target)).hash,
        "draft": open_checkpoint(resolve_checkpoint(arguments.draft)).hash,
        "prompts": f"{zlib.crc32(chr(0).join(workloads[0].prompts).encode()):08x}",
    }
    return Store(arguments.json, settings)


def what_ranges_say(repetitions: int) -> str:
    """How sure the ranges of a table are: all of n values lie on one side of their law's median with 2^(1-n)."""
    if repetitions < 2:
        return "speeds: one repetition, so there is no range"
    share = 100 * (1 - 2.0 ** (1 - repetitions))
    return f"speeds: median (range) of {repetitions} repetitions; such a range covers the true median in {share:.1f} %"


def hold(
    arguments: argparse.Namespace,
    contest: Contest,
    store: Store,
    references: Sequence[str],
    table: Callable[[Sequence[Result]], str],
    draw: Callable[[Sequence[Result], Path], None],
) -> int:
    """Run what is missing, print the table, write the files that are asked for; returns the exit code.

    Raises:
        SsdClusterError: an engine does not start or fails.
    """
    left = run_missing(contest, store, alive=arguments.alive, minutes=arguments.minutes, progress=progress)
    results = results_of(contest, store, references)
    if results:
        print(table(results))
        print(what_ranges_say(min(result.repetitions for result in results)))
    if left:
        print(f"{left} of {contest.total} runs are missing; run the same command again")
    store.extra |= {"machine": machine(), "results": [result.as_json() for result in results]}
    store.write()
    if arguments.plot is not None and results:
        draw(results, arguments.plot)
    return 0
