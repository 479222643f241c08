"""Hit rate and speed of every fan-out law over budgets of guessed outcomes, beside plain and synchronous decoding."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from ssd_cluster.bench.contest.entries import Entry, engine_entry
from ssd_cluster.bench.contest.options import add_contest, add_cores, hold, open_store, pair_options, workloads_of
from ssd_cluster.bench.contest.run import Contest
from ssd_cluster.bench.fanout.report import Guesses, draw, table
from ssd_cluster.bench.options import add_workload, branches, lookahead, numbers, positive
from ssd_cluster.bench.rules.command import ALL, named
from ssd_cluster.bench.spec import engine_spec
from ssd_cluster.config import FanoutLaw, SpeculationSettings
from ssd_cluster.types import Mode

_DEFAULTS = SpeculationSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench fanout``."""
    add = parser.add_argument
    add("--laws", default=ALL, help=f"comma-separated of {', '.join(FanoutLaw)}, or all")
    add_workload(parser, max_tokens=128)
    add("--temperature", default="0,0.7,1", help="one or several, comma-separated (default %(default)s)")
    add("--rows", default="4,8,16,32", help="guessed outcomes per round, one or several (default %(default)s)")
    add("--batch", type=positive, default=1, help="sequences at a time (default %(default)s)")
    add("--k", type=lookahead, default=_DEFAULTS.k, help="tokens proposed per round (default %(default)s)")
    add_cores(parser)
    add_contest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, print the table, write the files that are asked for.

    Raises:
        ConfigError: an option or the prompt file is wrong, or the JSON file holds results of other settings.
        SsdClusterError: an engine does not start or fails.
    """
    workloads = workloads_of(arguments, arguments.temperature, str(arguments.batch))
    laws = [FanoutLaw(name) for name in named(arguments.laws, tuple(FanoutLaw), "laws")]
    guesses = [Guesses(law, rows) for rows in numbers(arguments.rows, branches, "rows") for law in laws]
    entries = [_entry(arguments, mode, Guesses(FanoutLaw.MEASURED, _DEFAULTS.rows)) for mode in (Mode.AR, Mode.SD)]
    entries += [_entry(arguments, Mode.SSD, one) for one in guesses]
    store = open_store(arguments, workloads, ("k", "wait_ms"))
    contest = Contest(entries, workloads, arguments.repetitions)
    known = {one.name: one for one in guesses}
    return hold(arguments, contest, store, _references(guesses), partial(table, known), partial(draw, known))


def _references(guesses: Sequence[Guesses]) -> tuple[str, ...]:
    """Synchronous decoding, and the uniform law at every budget."""
    uniform = dict.fromkeys(Guesses(FanoutLaw.UNIFORM, one.rows).name for one in guesses)
    return (Mode.SD.value, *uniform)


def _entry(arguments: argparse.Namespace, mode: Mode, guesses: Guesses) -> Entry:
    speculation = SpeculationSettings(k=arguments.k, rows=guesses.rows, wait_ms=arguments.wait_ms)
    options = pair_options(arguments, speculation, fanout=guesses.law, max_batch=arguments.batch)
    return engine_entry(guesses.name if mode is Mode.SSD else mode.value, engine_spec(mode, options))
