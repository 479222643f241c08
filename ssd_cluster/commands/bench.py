"""Measure modes, guesses, misses, links, endpoints, peers, pools or verification rules, and print a table."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ssd_cluster.bench import command as modes
from ssd_cluster.bench.fallback import command as fallback
from ssd_cluster.bench.fanout import command as fanout
from ssd_cluster.bench.link import command as link
from ssd_cluster.bench.load import command as load
from ssd_cluster.bench.peers import command as peers
from ssd_cluster.bench.pool import command as pool
from ssd_cluster.bench.rules import command as rules
from ssd_cluster.bench.sampling import command as sampling
from ssd_cluster.bench.scaling import command as scaling

BENCHMARKS = {
    "modes": (modes, "speed of modes ar, sd and ssd, interleaved in one run (the default)"),
    "fanout": (fanout, "hit rate and speed of fan-out laws over budgets of guessed outcomes"),
    "fallback": (fallback, "speed over batch sizes for every way to treat a miss"),
    "link": (link, "round trips and bytes of the draft link over every backend"),
    "serve": (load, "open-loop load on a running OpenAI-compatible endpoint"),
    "peers": (peers, "our modes beside transformers and other servers, on the same prompts"),
    "pool": (pool, "many targets on one draft, replayed from recorded texts: capacity, sharing, overload, latency"),
    "rules": (rules, "tokens per target call under every verification rule"),
    "sampling": (sampling, "hit rate and acceptance of ratio rules over SAGUARO's C, beside the coupled rule"),
    "scaling": (
        scaling,
        "a running deployment under load that rises and falls: drafts over time, lost requests, texts",
    ),
}
DEFAULT = "modes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One subcommand per benchmark."""
    family = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, (benchmark, help_text) in BENCHMARKS.items():
        subparser = family.add_parser(name, help=help_text, description=benchmark.__doc__)
        benchmark.add_arguments(subparser)
        subparser.set_defaults(run=benchmark.run)


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen benchmark; see its module for errors."""
    return int(BENCHMARKS[arguments.benchmark][0].run(arguments))


def spelled_out(words: Sequence[str]) -> list[str]:
    """The words of a command line behind ``bench``, with the benchmark that is meant where options come at once."""
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        return [DEFAULT, *words]
    return list(words)
