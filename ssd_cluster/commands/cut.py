"""Make a draft checkpoint from chosen layers of a target (its embeddings, final norm and head are kept)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ssd_cluster.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="checkpoint folder, .gguf file, hub id or name of the embedded default")
    parser.add_argument("out", type=Path, help="folder to create")
    parser.add_argument("--layers", required=True, help="a count (the first N layers) or a list such as 0,1,2,14,29")


def parse_layers(text: str) -> list[int]:
    """``"8"`` -> the first eight layers; ``"0,1,29"`` -> those.

    Raises:
        ConfigError: not a count and not a list of layer numbers.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--layers must be a count or a list such as 0,1,29, got {text!r}", param="layers") from error
    return list(range(numbers[0])) if "," not in text else numbers


def run(arguments: argparse.Namespace) -> int:
    from ssd_cluster.model.checkpoint import resolve_checkpoint
    from ssd_cluster.model.cut import cut_checkpoint

    out = cut_checkpoint(resolve_checkpoint(arguments.target), arguments.out, parse_layers(arguments.layers))
    print(out, file=sys.stdout)
    return 0
