"""Download the embedded default model, check it and convert it once; prints the folder of the checkpoint."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")


def run(arguments: argparse.Namespace) -> int:
    from ssd_cluster.model.assets import ensure_smollm2

    def progress(line: str) -> None:
        if not arguments.quiet:
            print(line, file=sys.stderr)

    print(ensure_smollm2(progress))
    return 0
