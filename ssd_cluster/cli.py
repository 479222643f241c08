"""Entry point of the ``ssd-cluster`` command: parses, dispatches, turns our errors into one line and an exit code."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from ssd_cluster import __version__
from ssd_cluster.commands.bench import spelled_out
from ssd_cluster.errors import ConfigError, InvalidRequest, SsdClusterError

COMMANDS = {
    "serve": "serve a configuration file on a local Ray until Ctrl-C",
    "deploy": "check a configuration file and deploy it on a running Ray cluster",
    "status": "show the targets and drafts of a running cluster",
    "generate": "answer one prompt in this process and print one JSON object",
    "chat": "talk to the model in this terminal",
    "bench": "measure modes, guesses, misses, links, endpoints, peers or rules, and print a table",
    "simulate": "predict the speed of targets and drafts from times and statistics",
    "trace": "summarise a round trace and draw its timeline",
    "check-pair": "say whether a draft fits a target and what speed-up to expect",
    "cut": "make a draft checkpoint from chosen layers of a target",
    "distill": "train a draft for a target from what the target itself writes",
    "fetch": "download and convert the embedded default model",
}


def build_parser() -> argparse.ArgumentParser:
    """Parser with one subcommand for each name in ``COMMANDS``."""
    parser = argparse.ArgumentParser(prog="ssd-cluster", description="Speculative speculative decoding on Ray.")
    parser.add_argument("--version", action="version", version=f"ssd-cluster {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        command = importlib.import_module(f"ssd_cluster.commands.{name.replace('-', '_')}")
        subparser = subparsers.add_parser(name, help=help_text, description=command.__doc__)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["bench"]:
        words[1:] = spelled_out(words[1:])
    arguments = build_parser().parse_args(words)
    try:
        return int(arguments.run(arguments))
    except (ConfigError, InvalidRequest) as error:
        print(f"ssd-cluster {arguments.command}: {error.message}", file=sys.stderr)
        return 2
    except SsdClusterError as error:
        print(f"ssd-cluster {arguments.command}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    sys.exit(main())
