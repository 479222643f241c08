"""Say whether a draft fits a target, and what speed-up to expect."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_cluster.commands.engine_options import add_speculation_arguments, pair_options

if TYPE_CHECKING:
    from ssd_cluster.bench.pair import PairReport

_WORTH = 1.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", help="folder, .gguf file, hub id or embedded name")
    add("draft", help="the same, for the draft")
    add_speculation_arguments(parser)
    add("--max-tokens", type=int, default=64, help="tokens per tried prompt (default %(default)s)")
    add("--json", type=Path, default=None, metavar="OUT", help="write the report to this file as well")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; exit code 0 also for a pair that is not worth it.

    Raises:
        PairMismatch: the tokenizers differ.
        CheckpointError: a model is missing or broken.
    """
    from ssd_cluster.bench.pair import measure_pair

    report = measure_pair(pair_options(arguments), (0.0, 1.0), arguments.max_tokens, progress=_progress)
    print("\n".join(describe(report)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.as_json(), indent=2), encoding="utf-8")
    return 0


def describe(report: PairReport) -> list[str]:
    """The report in lines for people."""
    t = report.times
    lines = [f"tokenizers agree{''.join(f'; {remark}' for remark in report.remarks)}"]
    lines.append(
        f"forward passes: target {t.plain * 1e3:.1f} ms for 1 token, {t.verify * 1e3:.1f} ms for {report.k + 1}; "
        f"draft {t.draft_step * 1e3:.1f} ms for 1 row, {t.tree_step * 1e3:.1f} ms for {report.rows}"
    )
    for a in report.acceptance:
        p = report.predictions[a.temperature]
        kept = " ".join(f"{share:.2f}" for share in a.kept)
        lines.append(
            f"temperature {a.temperature:g}: kept per position {kept or 'none'}; {a.tokens_per_round:.2f} tokens per "
            f"round; hit rate {a.hit_rate:.2f}; predicted tokens/s: ar {p.ar:.1f}, sd {p.sd:.1f} "
            f"({p.sd_ratio:.2f}x), ssd {p.ssd:.1f} ({p.ssd_ratio:.2f}x)"
        )
    best = max(max(p.sd_ratio, p.ssd_ratio) for p in report.predictions.values())
    if best < _WORTH:
        lines.append("this pair is not worth it: decode plainly (mode ar), or train a draft on this target")
    else:
        lines.append(f"worth it: up to {best:.2f} times plain decoding at batch 1, if the model holds")
    return lines


def _progress(line: str) -> None:
    print(line, file=sys.stderr)
