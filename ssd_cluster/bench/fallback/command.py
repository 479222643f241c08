"""Speed over batch sizes for every way to treat a miss: wait for a chain, n-gram, nothing, or a rule that decides."""

from __future__ import annotations

import argparse

from ssd_cluster.bench.contest.entries import Entry, engine_entry
from ssd_cluster.bench.contest.options import add_contest, add_cores, hold, open_store, pair_options, workloads_of
from ssd_cluster.bench.contest.run import Contest
from ssd_cluster.bench.fallback.report import RULE, draw, table
from ssd_cluster.bench.options import add_workload, branches, lookahead, numbers, positive
from ssd_cluster.bench.rules.command import ALL, named
from ssd_cluster.bench.spec import engine_spec
from ssd_cluster.config import Fallback, MissPolicy, SpeculationSettings
from ssd_cluster.types import Mode

POLICIES = {
    RULE: (MissPolicy.RULE, Fallback.NGRAM),
    "jit": (MissPolicy.ALWAYS_WAIT, Fallback.NGRAM),
    "ngram": (MissPolicy.NEVER_WAIT, Fallback.NGRAM),
    "none": (MissPolicy.NEVER_WAIT, Fallback.NONE),
    "threshold": (MissPolicy.THRESHOLD, Fallback.NGRAM),
    "random": (MissPolicy.NEVER_WAIT, Fallback.NONE),
}
"""Miss policy and local fallback of each; ``random`` puts random tokens in the place of the latter."""

BASELINES = ("ar", "sd")
_DEFAULTS = SpeculationSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench fallback``."""
    add = parser.add_argument
    add("--policies", default=ALL, help=f"comma-separated of {', '.join(POLICIES)}, or all")
    add_workload(parser, max_tokens=128)
    add("--temperature", default="0", help="one or several, comma-separated (default %(default)s)")
    add("--batch", default="1,2,4,8,16", help="sequences at a time, one or several (default %(default)s)")
    add("--k", type=lookahead, default=_DEFAULTS.k, help="tokens proposed per round (default %(default)s)")
    add("--rows", type=branches, default=_DEFAULTS.rows, help="guessed outcomes per round (default %(default)s)")
    add_cores(parser)
    add_contest(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, print the table, write the files that are asked for.

    Raises:
        ConfigError: an option or the prompt file is wrong, or the JSON file holds results of other settings.
        SsdClusterError: an engine does not start or fails.
    """
    workloads = workloads_of(arguments, arguments.temperature, arguments.batch)
    largest = max(numbers(arguments.batch, positive, "batch"))
    names = named(arguments.policies, tuple(POLICIES), "policies")
    entries = [_entry(arguments, name, largest) for name in (*BASELINES, *names)]
    store = open_store(arguments, workloads, ("k", "rows", "wait_ms"))
    contest = Contest(entries, workloads, arguments.repetitions)
    return hold(arguments, contest, store, ("sd", RULE), table, draw)


def _entry(arguments: argparse.Namespace, name: str, max_batch: int) -> Entry:
    policy, fallback = POLICIES.get(name, POLICIES[RULE])
    speculation = SpeculationSettings(
        k=arguments.k, rows=arguments.rows, miss_policy=policy, fallback=fallback, wait_ms=arguments.wait_ms
    )
    options = pair_options(arguments, speculation, max_batch=max_batch)
    spec = engine_spec(Mode(name) if name in BASELINES else Mode.SSD, options)
    return engine_entry(name, spec.model_copy(update={"random_fallback": name == "random"}))
