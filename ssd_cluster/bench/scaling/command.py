"""Load that rises and falls against a running deployment: how its pool of drafts follows, and what clients get."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import httpx

from ssd_cluster.bench.options import machine, positive, progress
from ssd_cluster.bench.scaling.client import Endpoint, Question
from ssd_cluster.bench.scaling.load import plain_answers
from ssd_cluster.bench.scaling.profile import parse_profile
from ssd_cluster.bench.scaling.report import as_json, draw, table
from ssd_cluster.bench.scaling.run import drive
from ssd_cluster.bench.scaling.watch import require_pool
from ssd_cluster.bench.workload import load_prompts
from ssd_cluster.credentials import read_keys
from ssd_cluster.errors import StartupError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``ssd-cluster bench scaling``."""
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="where a target is served (default %(default)s)")
    add("--api-keys-file", type=Path, default=None, help="file with an API key, where the target asks for one")
    add("--pool", default=None, metavar="NAME", help="the draft application to watch (default: all drafts)")
    add("--profile", default="1x20,8x60,1x90", help="STREAMSxSECONDS, comma-separated (default %(default)s)")
    add("--prompts", type=Path, required=True, help='.jsonl file, one object with a string "prompt" per line')
    add("--limit", type=positive, default=8, help="use the first N prompts only (default %(default)s)")
    add("--max-tokens", type=positive, default=64, help="tokens per answer (default %(default)s)")
    add("--temperature", type=float, default=0.0)
    add("--seed", type=int, default=0, help="seed of the first prompt; the next has the next seed")
    add("--pace", type=float, default=0.5, metavar="S", help="seconds between two looks at the cluster")
    add("--timeout", type=float, default=300.0, metavar="S", help="longest wait for an answer (default %(default)s)")
    add("--json", type=Path, default=None, metavar="OUT", help="write the results and every look to this file")
    add("--plot", type=Path, default=None, metavar="PNG", help="draw streams, sessions and drafts over time")


def run(arguments: argparse.Namespace) -> int:
    """Ask, watch, print the table; 1 if a request was lost.

    Raises:
        ConfigError: an option or the prompt file is wrong.
        StartupError: no target answers, or not as it should before there is any load.
    """
    stages = parse_profile(arguments.profile)
    prompts = load_prompts(arguments.prompts, arguments.limit)
    questions = [
        Question(prompt, arguments.seed + n, arguments.max_tokens, arguments.temperature)
        for n, prompt in enumerate(prompts)
    ]
    keys = arguments.api_keys_file
    key = read_keys(keys, "--api-keys-file")[0] if keys is not None else None
    endpoint = Endpoint(arguments.url, key, arguments.timeout)
    try:
        require_pool(endpoint.require(), arguments.pool)
        try:
            expected = plain_answers(endpoint, questions, progress)
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise StartupError(f"{arguments.url} does not answer plain requests: {error}") from None
        results = drive(
            endpoint,
            expected,
            stages,
            pool=arguments.pool,
            pace_s=arguments.pace,
            drain_s=arguments.timeout,
            progress=progress,
        )
    finally:
        endpoint.close()
    print(table(results))
    failures = [line for one in results for line in one.outcome.failures]
    for line in dict.fromkeys(failures):
        print(f"failed: {line}")
    if arguments.json is not None:
        config = {name: str(value) for name, value in vars(arguments).items() if name not in ("run", "json", "plot")}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps({"config": config | machine(), "stages": as_json(results)}, indent=1) + "\n", encoding="utf-8"
        )
    if arguments.plot is not None:
        draw(results, arguments.plot)
    return 1 if failures else 0
