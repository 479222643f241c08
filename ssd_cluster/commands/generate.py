"""Answer one prompt with an engine in this process and print one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ssd_cluster.bench.spec import traced
from ssd_cluster.commands.engine_options import add_engine_arguments, add_sampling_arguments, params_of, spec_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", required=True, help="the user's turn of a chat, or text to continue with --raw")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    add_engine_arguments(parser)
    add_sampling_arguments(parser, max_tokens=128)
    parser.add_argument("--trace", type=Path, default=None, metavar="FILE", help="record every round in FILE")
    parser.add_argument("--json", action="store_true", help="one line of JSON (default: indented)")


def run(arguments: argparse.Namespace) -> int:
    """Generate and print.

    Raises:
        SsdClusterError: the engine cannot start, or refuses or fails the request.
    """
    from ssd_cluster.bench.local import LocalEngine

    params = params_of(arguments)
    spec = traced(spec_of(arguments), arguments.trace)
    with LocalEngine(spec) as local:
        completion = local.complete(local.encode(arguments.prompt, arguments.raw), params)
        result = completion.as_json() | {"config": spec.model_dump(mode="json") | local.info}
    _print(result, one_line=arguments.json)
    return 0


def _print(result: dict[str, Any], *, one_line: bool) -> None:
    json.dump(result, sys.stdout, indent=None if one_line else 2, ensure_ascii=False)
    sys.stdout.write("\n")
