"""Deploy a configuration file on a running Ray cluster as `serve deploy` does, after checking all that can be."""

from __future__ import annotations

import argparse
from pathlib import Path

from ssd_cluster.config import dashboard_address
from ssd_cluster.errors import StartupError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", type=Path, help="Serve configuration, for example cluster_configs/two-nodes.yaml")
    add(
        "--address",
        default=dashboard_address(),
        help="Ray's dashboard (RAY_DASHBOARD_ADDRESS, or http://127.0.0.1:8265)",
    )
    add("--dry-run", action="store_true", help="check everything and say where replicas fit; change nothing")
    add(
        "--nodes-may-come",
        action="store_true",
        help="the cluster adds nodes by itself: what does not fit the present ones is said, and deployed all the same",
    )
    add("--deadline", type=float, default=1800.0, metavar="S", help="how long applications may take to run (1800)")


def run(arguments: argparse.Namespace) -> int:
    """Deploy.

    Raises:
        ConfigError: the file is wrong, or does not fit the cluster.
        StartupError: the cluster does not answer, or an application does not run.
    """
    if not arguments.deadline > 0:
        raise StartupError("--deadline must be above 0 seconds")
    from ssd_cluster.serve.deploy import deploy

    return deploy(
        arguments.config,
        arguments.address,
        dry_run=arguments.dry_run,
        nodes_may_come=arguments.nodes_may_come,
        deadline_s=arguments.deadline,
    )
