"""Summarise the round trace of a target (recorded with --trace), and draw its timeline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, help="trace of a target; that of its draft, FILE.draft, is read too if it is there")
    add("--plot", type=Path, default=None, metavar="OUT.png", help="draw the timeline (default: FILE.png)")
    add("--first", type=int, default=0, help="first round to draw (default %(default)s)")
    add("--count", type=int, default=40, help="rounds to draw (default %(default)s)")
    add("--no-plot", action="store_true", help="the summary only")
    add("--json", type=Path, default=None, metavar="OUT", help="write the summary to this file as well")


def run(arguments: argparse.Namespace) -> int:
    """Print the summary, draw the timeline.

    Raises:
        ConfigError: the file is no trace, or has no such rounds.
    """
    from ssd_cluster.bench.tracing.records import read_trace
    from ssd_cluster.bench.tracing.summary import summary, summary_lines
    from ssd_cluster.bench.tracing.timeline import draw_timeline

    trace = read_trace(arguments.file)
    figures = summary(trace)
    print("\n".join(summary_lines(figures)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if not arguments.no_plot:
        path = arguments.plot or arguments.file.with_name(arguments.file.name + ".png")
        draw_timeline(trace, path, max(0, arguments.first), max(1, arguments.count))
        print(f"timeline          {path}")
    return 0
