"""Measure modes, interleaved in one run, and print a table."""

from __future__ import annotations

from ssd_cluster.bench.command import add_arguments, run

__all__ = ["add_arguments", "run"]
