"""Serve a configuration file: starts a local Ray with Serve, deploys its applications, serves until Ctrl-C."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="Serve configuration, for example cluster_configs/laptop.yaml")
    parser.add_argument("--port", type=int, default=None, help="HTTP port instead of the configured one")


def run(arguments: argparse.Namespace) -> int:
    from ssd_cluster.serve import local

    return local.serve(arguments.config, port=arguments.port)
