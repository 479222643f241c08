"""Round trips and bytes of the draft link over every backend, with a draft that answers at once instead of a model."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import ValidationError

from ssd_cluster.bench.contest.options import what_ranges_say
from ssd_cluster.bench.options import branches, cores, lookahead, machine, positive, progress
from ssd_cluster.bench.rules.command import ALL, named
from ssd_cluster.config import DEFAULT_TOP_M, SpeculationSettings
from ssd_cluster.errors import ConfigError

if TYPE_CHECKING:
    from ssd_cluster.bench.link.lines import Backend, Line
    from ssd_cluster.bench.link.report import LinkResult
    from ssd_cluster.bench.link.shape import Shape

BACKENDS = ("inprocess", "codec", "grpc", "grpc-tls", "tensor")
PAYLOADS = ("blocks", "sparse", "dense")
_DEFAULTS = SpeculationSettings()
_WARM_UP = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench link``."""
    add = parser.add_argument
    add("--backends", default=ALL, help=f"comma-separated of {', '.join(BACKENDS)}, or all")
    add("--payloads", default=ALL, help=f"comma-separated of {', '.join(PAYLOADS)} (laws besides blocks), or all")
    add("--batch", type=positive, default=1, help="sequences per commit (default %(default)s)")
    add("--k", type=lookahead, default=_DEFAULTS.k, help="tokens per proposal and branch (default %(default)s)")
    add("--rows", type=branches, default=_DEFAULTS.rows, help="branches per block (default %(default)s)")
    add("--vocabulary", type=positive, default=49152, help="entries of a dense law's row (default %(default)s)")
    add("--top-m", type=positive, default=DEFAULT_TOP_M, help="entries of a sparse law's row (default %(default)s)")
    add("--round-trips", type=positive, default=1000, help="per backend and repetition (default %(default)s)")
    add("--repetitions", type=positive, default=5, help="runs of everything (default %(default)s)")
    add("--target-cores", type=cores, default=None, help="CPU cores of the target's end (default: the first)")
    add("--draft-cores", type=cores, default=None, help="CPU cores of a draft process (default: the second)")
    add("--json", type=Path, default=None, metavar="OUT", help="write the results to this file as well")
    add("--plot", type=Path, default=None, metavar="OUT.png", help="draw the figure")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the table, write the files that are asked for.

    Raises:
        ConfigError: an option is wrong, or nothing is left to measure.
        StartupError, LinkError: an echo does not start, or a link breaks.
    """
    from ssd_cluster.bench.pair import on_own_thread

    return on_own_thread(_run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    from ssd_cluster.bench.link.report import draw, table
    from ssd_cluster.bench.spec import default_cores
    from ssd_cluster.model.device import pin_thread

    plan = _plan(arguments)
    own, other = default_cores()
    if (chosen := arguments.target_cores or own) is not None:
        pin_thread(chosen)
    results = _measure(arguments, plan, arguments.draft_cores or other)
    print(table(results))
    print(what_ranges_say(arguments.repetitions).replace("speeds", "times"))
    if arguments.json is not None:
        names = ("batch", "k", "rows", "vocabulary", "top_m", "round_trips", "repetitions")
        config = {name: getattr(arguments, name) for name in names} | machine()
        content = {"config": config, "results": [result.as_json() for result in results]}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        draw(results, arguments.plot)
    return 0


def _plan(arguments: argparse.Namespace) -> list[tuple[Shape, Backend]]:
    """What is measured; says what is left out and why."""
    from ssd_cluster.bench.link.lines import Backend, unfit
    from ssd_cluster.bench.link.shape import Payload, Shape

    plan = []
    sizes = {name: getattr(arguments, name) for name in ("batch", "k", "rows", "vocabulary", "top_m")}
    for payload in named(arguments.payloads, PAYLOADS, "payloads"):
        try:
            shape = Shape(payload=Payload(payload), **sizes)
        except ValidationError as error:
            raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, "), param="top_m") from error
        for name in named(arguments.backends, BACKENDS, "backends"):
            reason = unfit(Backend(name), shape)
            if reason is None:
                plan.append((shape, Backend(name)))
            elif payload != Payload.BLOCKS:
                print(f"{payload} over {name} is left out: {reason}")
    if not plan:
        raise ConfigError("nothing is left to measure: backend tensor carries payloads sparse and dense only")
    return plan


def _measure(
    arguments: argparse.Namespace, plan: Sequence[tuple[Shape, Backend]], draft_cores: tuple[int, ...] | None
) -> list[LinkResult]:
    """All links are open at once; every repetition begins with the next one."""
    from ssd_cluster.bench.link.certificate import self_signed
    from ssd_cluster.bench.link.lines import Backend, open_line
    from ssd_cluster.link.loop import LinkLoop

    trips: list[list[list[float]]] = [[] for _ in plan]
    with TemporaryDirectory(prefix="ssd-cluster-bench-") as folder, ExitStack() as stack:
        tls = self_signed(Path(folder)) if any(backend is Backend.TLS for _, backend in plan) else None
        loop = stack.enter_context(LinkLoop("bench-link"))
        lines: list[Line] = []
        for shape, backend in plan:
            progress(f"opening {shape.payload.value} over {backend.value}")
            lines.append(stack.enter_context(open_line(backend, shape, loop, draft_cores, tls)))
            lines[-1].warm_up(_WARM_UP)
        for repetition in range(arguments.repetitions):
            progress(f"repetition {repetition + 1}/{arguments.repetitions}")
            for step in range(len(plan)):
                index = (repetition + step) % len(plan)
                trips[index].append([lines[index].round_trip() for _ in range(arguments.round_trips)])
    return [_result(shape, backend, own) for (shape, backend), own in zip(plan, trips, strict=True)]


def _result(shape: Shape, backend: Backend, trips: Sequence[Sequence[float]]) -> LinkResult:
    from ssd_cluster.bench.link.lines import Backend as Known
    from ssd_cluster.bench.link.report import LinkResult, percentiles
    from ssd_cluster.link.codec import encode

    p50, p99 = percentiles(trips)
    law = next(iter(shape.laws()), None)
    beside = backend is Known.TENSOR
    frame = None if law is None else law.announcement(1, 1) if beside else law.packed()
    return LinkResult(
        payload=shape.payload.value,
        backend=backend.value,
        p50_us=p50,
        p99_us=p99,
        commit_bytes=len(encode(shape.commit())) if backend.frames else None,
        blocks_bytes=len(encode(shape.blocks())) if backend.frames else None,
        law_bytes=len(encode(frame)) if frame is not None and backend.frames else None,
        beside_bytes=4 * law.entries if law is not None and beside else None,
    )
