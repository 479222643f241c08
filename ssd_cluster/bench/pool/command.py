"""Load of many targets on one real draft: capacity, sharing, overload, latency; the targets' outcomes are replayed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_cluster.bench.options import branches, cores, lookahead, machine, milliseconds, numbers, positive, progress
from ssd_cluster.config import DraftSettings, DType, MissPolicy, ModelSettings, SpeculationSettings
from ssd_cluster.errors import ConfigError

if TYPE_CHECKING:
    from ssd_cluster.bench.pool.cells import Cell
    from ssd_cluster.bench.pool.crowd import World
    from ssd_cluster.bench.pool.tables import Measured

_SPECULATION = SpeculationSettings()
_DRAFT = DraftSettings(model=ModelSettings(path="-"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench pool``."""
    add = parser.add_argument
    add("--record", type=Path, default=None, metavar="FILE", help="record the target's texts in this file, and end")
    add("--outcomes", type=Path, default=None, metavar="FILE", help="replay the texts of this file")
    _add_recording(parser)
    add("--temperature", default="0", help="one, or with --record several, comma-separated (default %(default)s)")
    add("--target-cores", type=cores, default=None, help="CPU cores of all targets (default: the first)")
    add("--dtype", choices=[dtype.value for dtype in DType], default=DType.AUTO.value)
    replay = parser.add_argument_group("with --outcomes").add_argument
    replay("--figures", default="all", help="capacity, sharing, overload, latency, sharding, comma-separated, or all")
    replay("--draft", default="smollm2-135m-draft", help="folder, .gguf file, hub id or embedded name")
    replay(
        "--weights",
        choices=("auto", "int8", "dtype"),
        default="auto",
        help="of the draft (default auto, as deployed: int8 where the kernels for it run)",
    )
    replay("--draft-cores", type=cores, default=None, help="CPU cores of the draft (default: the second)")
    replay(
        "--second-draft-cores", type=cores, default=None, help="sharding: of the other draft (default: the targets')"
    )
    replay("--verify-ms", default="40", help="T_v, one target forward: MS, or TOKENS:MS/TOKENS:MS/... (default 40)")
    replay("--k", type=lookahead, default=_SPECULATION.k, help="tokens proposed per round (default %(default)s)")
    replay("--rows", type=branches, default=_SPECULATION.rows, help="guessed outcomes per round (default %(default)s)")
    replay("--miss-policy", choices=[policy.value for policy in MissPolicy], default=_SPECULATION.miss_policy.value)
    replay("--wait-ms", type=milliseconds, default=_SPECULATION.wait_ms, help="longest wait for the draft after a miss")
    replay("--chain-k", type=positive, default=None, help="tokens of the chain waited for then (default: --k)")
    replay("--controller", action="store_true", help="targets choose by themselves: --k and --rows are then ceilings")
    replay("--max-step-rows", type=positive, default=_DRAFT.max_step_rows, help="rows of one draft forward")
    replay("--row-credit", type=positive, default=_DRAFT.row_credit, help="rows that all targets may ask for together")
    replay("--sequences", default="1,2,4,8,16", help="capacity: sequences on the draft (default %(default)s)")
    replay("--per-target", type=positive, default=1, help="capacity: of them in one target (default %(default)s)")
    replay("--big", type=positive, default=16, help="sharing: sequences of the big target (default %(default)s)")
    replay("--overload-targets", type=positive, default=2, help="overload: targets (default %(default)s)")
    replay("--overload-batch", type=positive, default=4, help="overload: sequences of each (default %(default)s)")
    replay("--sharding-batch", type=positive, default=1, help="sharding: sequences of the target (default %(default)s)")
    replay("--one-way-ms", default="0,1,5", help="latency: added to each message (default %(default)s)")
    replay("--latency-batch", type=positive, default=1, help="latency: sequences of the target (default %(default)s)")
    replay("--repetitions", type=positive, default=3, help="of every cell, interleaved (default %(default)s)")
    replay("--warm-up", type=_seconds, default=3.0, metavar="S", help="before a cell is measured (default %(default)s)")
    replay("--seconds", type=_seconds, default=8.0, metavar="S", help="of measuring a cell (default %(default)s)")
    replay("--json", type=Path, default=None, metavar="OUT", help="collect results here; continued if it is there")
    replay("--plot", type=Path, default=None, metavar="OUT.png", help="draw capacity and latency")


def _add_recording(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("with --record").add_argument
    add("--prompts", type=Path, default=None, help='.jsonl file, one object with a string "prompt" per line')
    add("--limit", type=positive, default=None, help="use the first N prompts only")
    add("--max-tokens", type=positive, default=128, help="tokens per answer (default %(default)s)")
    add("--seed", type=int, default=0, help="seed of the first prompt; the next has the next seed")
    add("--top-p", type=float, default=1.0)
    add("--top-k", type=int, default=0)
    add("--raw", action="store_true", help="prompts are text to continue, not turns of a chat")
    add("--ignore-eos", action="store_true", help="always generate --max-tokens tokens")
    add("--target", default="smollm2-135m-instruct", help="folder, .gguf file, hub id or embedded name")
    add("--record-batch", type=positive, default=8, help="answers at a time (default %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Record, or replay and print the figures.

    Raises:
        ConfigError: an option or a file is wrong, or a file holds results of other settings.
        CheckpointError: a model is missing or broken.
        PairMismatch: draft and recorded target have different tokenizers.
        StartupError, EngineStopped: a draft or target does not start, or fails.
    """
    from ssd_cluster.bench.pair import on_own_thread

    if (arguments.record is None) == (arguments.outcomes is None):
        raise ConfigError("give either --record FILE, to record outcomes, or --outcomes FILE, to replay them")
    return on_own_thread(_record if arguments.record is not None else _replay, arguments)


def _record(arguments: argparse.Namespace) -> int:
    from ssd_cluster.bench.pool.recording import record

    if arguments.prompts is None:
        raise ConfigError("--record needs --prompts FILE.jsonl", param="prompts")
    temperatures = numbers(arguments.temperature, float, "temperature")
    print(record(arguments, temperatures, progress))
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    from ssd_cluster.bench.pool.measuring import Measuring
    from ssd_cluster.bench.pool.tables import collect
    from ssd_cluster.bench.pool.world import build_world, chosen_cores, drafts_of
    from ssd_cluster.bench.store import Store
    from ssd_cluster.model.device import pin_thread

    figures = _figures(arguments)
    for_targets, for_draft = chosen_cores(arguments)
    pin_thread(for_targets)  # before any thread exists: streams, timers and engines all inherit it
    world = build_world(arguments, for_targets)
    store = Store(arguments.json, _settings(arguments, world))
    drafts = drafts_of(arguments, world, [cell for cells in figures.values() for cell in cells], for_draft)
    times = {"warm_up_s": arguments.warm_up, "seconds": arguments.seconds}
    measured: dict[str, list[Measured]] = {}
    with Measuring(world, drafts, progress=progress, **times) as measuring:
        for figure, cells in figures.items():
            measuring.run(cells, arguments.repetitions, store)
            measured[figure] = collect(cells, arguments.repetitions, store)
            _print(figure, measured[figure])
    before = store.extra.get("figures", {})
    store.extra = {"machine": machine(), "figures": before | _as_json(measured)}
    store.write()
    if arguments.plot is not None:
        from ssd_cluster.bench.pool.drawing import draw

        draw(measured, arguments.plot)
    return 0


def _figures(arguments: argparse.Namespace) -> dict[str, list[Cell]]:
    from ssd_cluster.bench.pool import cells
    from ssd_cluster.bench.rules.command import named

    chosen = named(arguments.figures, cells.FIGURES, "figures")
    ways = numbers(arguments.one_way_ms, _latency, "one-way-ms")
    if "latency" in chosen and 0.0 not in ways:
        raise ConfigError("--one-way-ms needs 0 among its numbers, to compare with", param="one_way_ms")
    if arguments.plot is not None and not {"capacity", "latency"} & set(chosen):
        raise ConfigError("--plot draws capacity and latency; neither is measured", param="plot")
    made = {
        "capacity": cells.capacity(numbers(arguments.sequences, positive, "sequences"), arguments.per_target),
        "sharing": cells.sharing(arguments.big),
        "overload": cells.overload(arguments.overload_targets, arguments.overload_batch),
        "latency": cells.latency(ways, arguments.latency_batch),
        "sharding": cells.sharding(arguments.sharding_batch, arguments.rows),
    }
    return {name: made[name] for name in chosen}


def _settings(arguments: argparse.Namespace, world: World) -> dict[str, Any]:
    """What every record depends on."""
    names = (
        "draft", "dtype", "weights", "k", "rows", "miss_policy", "wait_ms", "chain_k", "controller", "row_credit",
        "max_step_rows", "per_target", "big", "overload_targets", "overload_batch", "latency_batch", "sharding_batch",
        "warm_up", "seconds", "target_cores", "draft_cores", "second_draft_cores",
    )  # fmt: skip
    outcomes = asdict(world.outcomes)
    texts = outcomes.pop("texts")
    tokens = sum(len(text["output"]) for text in texts)
    return {
        "benchmark": "pool",
        "verify_ms": str(world.verify),
        "outcomes": {**outcomes, "texts": len(texts), "tokens": tokens},
        **{name: getattr(arguments, name) for name in names},
    }


def _print(figure: str, measured: Sequence[Measured]) -> None:
    from ssd_cluster.bench.pool import tables, verdicts

    shared = ("tokens/s per sequence", "hits per round", "late", "tokens/round", "round ms", "overhead ms")
    load = ("targets' CPU", "draft busy", "rows/step", "step ms", "refused")
    say = {
        "capacity": ("sequences", verdicts.of_capacity),
        "sharing": ("small target", verdicts.of_sharing),
        "overload": ("targets", verdicts.of_overload),
        "latency": ("client", verdicts.of_latency),
        "sharding": ("drafts", verdicts.of_sharding_out),
    }
    first, verdict = say[figure]
    print(f"{figure}: median (least-most) over {len(measured[0].records)} repetitions")
    print(tables.table(measured, (*shared, *load), first))
    for line in verdict(measured):
        print(line)
    wrong, ended = tables.different(measured)
    print(f"answers that are not the recorded text: {wrong} of {ended}\n", flush=True)


def _as_json(measured: dict[str, list[Measured]]) -> dict[str, Any]:
    from ssd_cluster.bench.pool import tables, verdicts

    return {
        figure: {"cells": tables.as_json(cells), "verdict": verdicts.as_json(figure, cells)}
        for figure, cells in measured.items()
    }


def _latency(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1000")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 3600")
    return value
