"""Open-loop load on a running endpoint: Poisson arrivals, latencies of first and later tokens, throughput, errors."""

from __future__ import annotations

import argparse
import asyncio
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

from ssd_cluster.bench.contest.options import what_ranges_say
from ssd_cluster.bench.endpoint.client import Client, Endpoint, checked_url, read_api_key
from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.load.figures import load_result
from ssd_cluster.bench.load.offer import arrivals, offer, spread_out
from ssd_cluster.bench.load.report import draw, table
from ssd_cluster.bench.options import add_prompts, machine, numbers, positive, progress
from ssd_cluster.bench.store import Store
from ssd_cluster.bench.workload import load_prompts
from ssd_cluster.errors import ConfigError

_SETTINGS = ("model", "requests", "max_tokens", "temperature", "seed", "top_p", "top_k", "raw", "ignore_eos")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench serve``."""
    add = parser.add_argument
    add("--url", required=True, help="of the endpoint, e.g. http://127.0.0.1:8000/v1")
    add("--model", default=None, help="name to ask for (default: the first that the endpoint lists)")
    add("--api-key-file", type=Path, default=None, metavar="FILE", help="file with the key to send")
    add("--rate", default="0.5,1,2", help="requests per second, one or several (default %(default)s)")
    add("--requests", type=positive, default=100, help="per rate and repetition (default %(default)s)")
    add_prompts(parser, max_tokens=128)
    add("--temperature", type=float, default=0.0)
    add("--devices", type=positive, default=None, help="cores or devices behind the endpoint, the draft's included")
    add("--timeout-s", type=float, default=120.0, help="longest silence within an answer (default %(default)s)")
    add("--repetitions", type=positive, default=5, help="runs of every rate (default %(default)s)")
    add("--minutes", type=float, default=None, help="stop after so long; the same command goes on from there")
    add("--json", type=Path, default=None, metavar="OUT", help="collect results in this file; it is continued if there")
    add("--plot", type=Path, default=None, metavar="OUT.png", help="draw the figure")


def run(arguments: argparse.Namespace) -> int:
    """Measure what is missing, print the table, write the files that are asked for.

    Returns:
        1 if no request was answered, else 0.

    Raises:
        ConfigError: an option or the prompt file is wrong, the endpoint lists no model, or the JSON file holds results
            of other settings.
    """
    rates = numbers(arguments.rate, float, "rate")
    if min(rates) <= 0:
        raise ConfigError(f"--rate must be above 0, got {arguments.rate!r}", param="rate")
    prompts = load_prompts(arguments.prompts, arguments.limit)
    shared = ("max_tokens", "temperature", "seed", "top_p", "top_k", "raw", "ignore_eos")
    workload = Workload(prompts=prompts, **{name: getattr(arguments, name) for name in shared})
    settings = {name: getattr(arguments, name) for name in _SETTINGS} | {
        "benchmark": arguments.benchmark,
        "url": checked_url(arguments.url),
        "prompts": f"{zlib.crc32(chr(0).join(prompts).encode()):08x}",
    }
    store = Store(arguments.json, settings)
    endpoint = Endpoint(arguments.url, arguments.model, read_api_key(arguments.api_key_file), arguments.timeout_s)
    left = asyncio.run(_measure(arguments, endpoint, workload, rates, store))
    return _report(arguments, rates, store, left)


def _report(arguments: argparse.Namespace, rates: Sequence[float], store: Store, left: int) -> int:
    records = {rate: store.all([_key(rate, n) for n in range(arguments.repetitions)]) for rate in rates}
    results = [load_result(rate, runs, arguments.devices) for rate, runs in records.items() if runs]
    if results:
        print(table(results))
        print(what_ranges_say(min(result.repetitions for result in results)))
    details = {r["error"]: r["detail"] for runs in records.values() for run in runs for r in run["requests"]}
    for kind, detail in details.items():
        if kind is not None:
            print(f"{kind}: for example {detail}")
    if left:
        print(f"{left} of {len(rates) * arguments.repetitions} runs are missing; run the same command again")
    store.extra |= {"client": machine(), "results": [result.as_json() for result in results]}
    store.write()
    if arguments.plot is not None and results:
        draw(results, arguments.plot)
    return 0 if any(result.answered for result in results) or not results else 1


async def _measure(
    arguments: argparse.Namespace, endpoint: Endpoint, workload: Workload, rates: Sequence[float], store: Store
) -> int:
    """Make the runs that are missing, rates in rotating order; returns how many are missing when the time is up."""
    order = [
        (rate, n) for n in range(arguments.repetitions) for rate in (*rates[n % len(rates) :], *rates[: n % len(rates)])
    ]
    todo = [(rate, n) for rate, n in order if _key(rate, n) not in store]
    began = time.monotonic()
    asked = spread_out(workload, arguments.requests)
    async with Client(endpoint) as client:
        model = await client.model() if todo else ""
        for done, (rate, n) in enumerate(todo):
            if arguments.minutes is not None and time.monotonic() - began >= 60 * arguments.minutes:
                return len(todo) - done
            times = arrivals(rate, arguments.requests, f"{arguments.seed} {n}")
            record = await offer(lambda index: client.ask(model, asked, index), times)
            store.add(_key(rate, n), record)
            failed = sum(r["error"] is not None for r in record["requests"])
            progress(f"{done + 1}/{len(todo)} {rate:g} requests/s: {record['seconds']:.0f} s, {failed} errors")
    return 0


def _key(rate: float, repetition: int) -> str:
    return f"rate={rate:g}|{repetition}"
