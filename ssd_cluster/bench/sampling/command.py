"""Hit rate and acceptance of the ratio rules over SAGUARO's C, beside the coupled rule, and the speeds they predict."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_cluster.bench.options import add_workload, branches, lookahead, machine, numbers, progress
from ssd_cluster.bench.rules.command import ALL, add_drafting, measure, named, say_left, terms_of
from ssd_cluster.config import FanoutLaw, ModelSettings, SaguaroSettings, SpeculationSettings
from ssd_cluster.errors import ConfigError

if TYPE_CHECKING:
    from ssd_cluster.bench.rules.pair import LoadedPair
    from ssd_cluster.bench.rules.plan import Cell, Prompt
    from ssd_cluster.bench.store import Store

COUPLED = "coupled"
RULES = (COUPLED, "token", "block")
"""In the order of the table. Only the ratio rules have a C."""

_SPECULATION = SpeculationSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench sampling``."""
    add = parser.add_argument
    add("--rules", default=ALL, help=f"comma-separated of {', '.join(RULES)}, or all")
    add_workload(parser, max_tokens=64)
    add_drafting(parser)
    add("--temperature", default="0.7,1", help="one or several, comma-separated (default %(default)s)")
    add("--k", type=lookahead, default=_SPECULATION.k, help="tokens drafted per round (default %(default)s)")
    add("--c", default="1,0.8,0.6,0.4,0.2,0", help="weights of the F likeliest tokens (default %(default)s)")
    add("--f", type=branches, default=SaguaroSettings().f, help="F: tokens that are weighed, guesses per position")
    add("--rows", type=branches, default=_SPECULATION.rows, help="R: guesses per round of the planner")
    add("--fanout", choices=[law.value for law in FanoutLaw], default=FanoutLaw.MEASURED.value)
    add("--retime", action="store_true", help="measure forward times again, e.g. once the machine is quiet")
    add("--plot", type=Path, default=None, metavar="OUT.png", help="draw the figure")


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, print the table and the fastest rules, write the files that are asked for.

    Raises:
        ConfigError: an option or the prompt file is wrong, or the JSON file holds results of other settings.
        CheckpointError: a model is missing or broken.
        PairMismatch: the models have different tokenizers.
    """
    from ssd_cluster.bench.pair import on_own_thread

    return on_own_thread(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from ssd_cluster.bench.sampling.report import draw, fastest, summarise, table

    cells = _cells(arguments)
    prompts, store, left = measure(arguments, cells, _runner)
    times = _times(arguments, store)
    # Speeds are compared on the same prompts: those that every cell has.
    complete = [prompt for prompt in prompts if all(cell.key(prompt) in store for cell in cells)]
    results = summarise(cells, complete or prompts, store, times, arguments.rows, FanoutLaw(arguments.fanout))
    print(table(results))
    for line in fastest(results) if complete else ():
        print(line)
    say_left(left, len(cells) * len(prompts))
    store.extra |= {"machine": machine(), "results": [result.as_json() for result in results]}
    store.write()
    if arguments.plot is not None:
        draw(results, arguments.plot)
    return 0


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    from ssd_cluster.bench.rules.plan import Cell

    weights = numbers(arguments.c, float, "c")
    if not all(0 <= c <= 1 for c in weights):
        raise ConfigError(f"--c must lie in [0, 1], got {arguments.c!r}", param="c")
    cells = []
    for temperature in numbers(arguments.temperature, float, "temperature"):
        for rule in named(arguments.rules, RULES, "rules"):
            for c in [1.0] if rule == COUPLED else weights:
                terms = terms_of(arguments, temperature=temperature, k=arguments.k, c=c, f=arguments.f)
                name = f"{rule} T={temperature:g} K={arguments.k}" + (f" C={c:g} F={arguments.f}" if c < 1 else "")
                cells.append(Cell(name, rule, terms))
    return cells


def _runner(pair: LoadedPair, raw: bool) -> Any:
    from ssd_cluster.bench.rules.decoding import continue_prompt
    from ssd_cluster.bench.rules.rounds import RULES as ROUNDS
    from ssd_cluster.bench.sampling.outcomes import OutcomeLog, outcome_record

    def run(cell: Cell, prompt: Prompt) -> dict[str, Any]:
        coupled = cell.rule == COUPLED
        log = OutcomeLog(coupled=coupled)
        rule = ROUNDS["equality" if coupled else cell.rule].round
        ids = pair.encode(prompt.text, raw)
        return outcome_record(continue_prompt(pair, ids, prompt.seed, cell.terms, rule, log.watcher()), log)

    return run


def _times(arguments: argparse.Namespace, store: Store) -> dict[str, float]:
    """Step times of the pair in seconds, measured once for each K and R and kept in the file, or again if asked for."""
    from ssd_cluster.bench.pair import pair_times
    from ssd_cluster.bench.spec import default_cores
    from ssd_cluster.config import DType

    name = f"K={arguments.k} R={arguments.rows}"
    known: dict[str, dict[str, float]] = store.extra.setdefault("times_s", {})
    if name not in known or arguments.retime:
        progress("timing forward passes")
        chosen = arguments.cores or default_cores()[0]
        target, draft = (
            ModelSettings(path=path, dtype=DType(arguments.dtype), cores=chosen)
            for path in (arguments.target, arguments.draft)
        )
        known[name] = asdict(pair_times(target, draft, arguments.k, arguments.rows))
    return known[name]
