"""Block efficiency of verification rules: tokens per target call, per rule, temperature and lookahead."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_cluster.bench.options import add_workload, cores, lookahead, machine, numbers, positive, progress, within
from ssd_cluster.config import DType
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import RATIO_KINDS, ProposalKind

if TYPE_CHECKING:
    from ssd_cluster.bench.rules.decoding import Terms
    from ssd_cluster.bench.rules.pair import LoadedPair
    from ssd_cluster.bench.rules.plan import Cell, Prompt
    from ssd_cluster.bench.store import Store

ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench rules``."""
    add = parser.add_argument
    add("--rules", default=ALL, help="comma-separated, or all; see docs/benchmarks.md")
    add_workload(parser, max_tokens=64)
    add_drafting(parser)
    add("--temperature", default="0.7,1", help="one or several, comma-separated (default %(default)s)")
    add("--k", default="3,5,7", help="tokens drafted per round, one or several (default %(default)s)")
    add("--drafts", type=_drafts, default=4, help="chains, or width of the tree, of rules that take several")


def add_drafting(parser: argparse.ArgumentParser) -> None:
    """What benchmarks that draft in this process share."""
    add = parser.add_argument
    add("--kind", choices=sorted(kind.value for kind in RATIO_KINDS), default=ProposalKind.DENSE.value)
    add("--top-m", type=positive, default=64, help="entries of a sparse law")
    add("--json", type=Path, default=None, metavar="OUT", help="collect results in this file; it is continued if there")
    add("--minutes", type=float, default=None, help="stop after so long; the same command goes on from there")
    add("--cores", type=cores, default=None, help="CPU cores of both models (default: the first)")


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, print the table, write the JSON file.

    Raises:
        ConfigError: an option or the prompt file is wrong, or the JSON file holds results of other settings.
        CheckpointError: a model is missing or broken.
        PairMismatch: the models have different tokenizers.
    """
    from ssd_cluster.bench.pair import on_own_thread

    return on_own_thread(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from ssd_cluster.bench.rules.report import summarise, table

    cells = _cells(arguments)
    prompts, store, left = measure(arguments, cells, _runner)
    results = summarise(cells, prompts, store)
    print(table(results))
    say_left(left, len(cells) * len(prompts))
    store.extra = {"machine": machine(), "results": [result.as_json() for result in results]}
    store.write()
    return 0


def measure(
    arguments: argparse.Namespace, cells: list[Cell], runner: Callable[[LoadedPair, bool], Any]
) -> tuple[list[Prompt], Store, int]:
    """Run what the store lacks: (prompts, store, continuations still missing). ``runner`` makes a cell's run."""
    from ssd_cluster.bench.rules.plan import run_missing

    pair, prompts, store = _prepare(arguments)
    try:
        left = run_missing(cells, prompts, store, runner(pair, arguments.raw), arguments.minutes, progress)
    finally:
        pair.close()
    return prompts, store, left


def say_left(left: int, total: int) -> None:
    """Say how much is missing, if anything is."""
    if left:
        print(f"{left} of {total} continuations are missing; run the same command again")


def _prepare(arguments: argparse.Namespace) -> tuple[LoadedPair, list[Prompt], Store]:
    """The loaded pair, the prompts, and the store with what is there already."""
    from ssd_cluster.bench.rules.pair import load_pair
    from ssd_cluster.bench.rules.plan import prompts_of
    from ssd_cluster.bench.spec import default_cores
    from ssd_cluster.bench.store import Store
    from ssd_cluster.bench.workload import load_prompts

    prompts = prompts_of(load_prompts(arguments.prompts, arguments.limit), arguments.seed)
    chosen = arguments.cores or default_cores()[0]
    pair = load_pair(arguments.target, arguments.draft, DType(arguments.dtype), chosen)
    names = ("max_tokens", "seed", "top_p", "top_k", "raw", "ignore_eos", "kind", "top_m")
    settings: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    settings |= {
        "benchmark": arguments.benchmark,
        "target": pair.target.model_hash,
        "draft": pair.draft.model_hash,
        "dtype": str(pair.target.dtype).removeprefix("torch."),
    }
    try:
        return pair, prompts, Store(arguments.json, settings)
    except BaseException:
        pair.close()
        raise


def terms_of(arguments: argparse.Namespace, **more: Any) -> Terms:
    """Terms from the options that all cells share, and what is a cell's own.

    Raises:
        ConfigError: a temperature, top_p or top_k is out of range.
    """
    from ssd_cluster.bench.rules.decoding import Terms
    from ssd_cluster.errors import InvalidRequest
    from ssd_cluster.sampling.params import SamplingParams

    shared = {name: getattr(arguments, name) for name in ("max_tokens", "top_p", "top_k", "top_m", "ignore_eos")}
    try:
        SamplingParams(temperature=more["temperature"], top_p=arguments.top_p, top_k=arguments.top_k)
    except InvalidRequest as error:
        raise ConfigError(error.message, param=error.param) from error
    return Terms(kind=ProposalKind(arguments.kind), **shared, **more)


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    from ssd_cluster.bench.rules.plan import Cell
    from ssd_cluster.bench.rules.rounds import RULES

    cells = []
    for temperature in numbers(arguments.temperature, float, "temperature"):
        for k in numbers(arguments.k, lookahead, "k"):
            for rule in named(arguments.rules, tuple(RULES), "rules"):
                drafts = arguments.drafts if RULES[rule].several else 1
                terms = terms_of(arguments, temperature=temperature, k=k, drafts=drafts)
                name = f"{rule} T={temperature:g} K={k}" + (f" D={drafts}" if RULES[rule].several else "")
                cells.append(Cell(name, rule, terms))
    return cells


def named(text: str, known: Sequence[str], option: str) -> list[str]:
    """``"all"`` or ``"a,b"`` -> names, in the order of ``known``.

    Raises:
        ConfigError: a name is unknown.
    """
    if text == ALL:
        return list(known)
    names = {name.strip() for name in text.split(",")}
    if not names <= set(known):
        unknown = ", ".join(sorted(names - set(known)))
        raise ConfigError(f"--{option}: there is no {unknown}; there are {', '.join(known)}", param=option)
    return [name for name in known if name in names]


def _runner(pair: LoadedPair, raw: bool) -> Any:
    from ssd_cluster.bench.rules.decoding import continue_prompt
    from ssd_cluster.bench.rules.plan import record_of
    from ssd_cluster.bench.rules.rounds import RULES

    def run(cell: Cell, prompt: Prompt) -> dict[str, Any]:
        ids = pair.encode(prompt.text, raw)
        return record_of(continue_prompt(pair, ids, prompt.seed, cell.terms, RULES[cell.rule].round))

    return run


def _drafts(text: str) -> int:
    return within(text, 64)
