"""Run faults on real processes and print a table: ``make faults``.

Every fault strikes while two streams are read, at temperature 0 and 1, in float32; every answer is compared with what
mode ``ar`` says. Exit code 1: a text differs. Needs two cores to give figures that mean something.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path

from ssd_cluster.config import set_ray_environment
from support.faults.table import table, write
from support.faults.trial import Outcome
from support.live_cluster import CONTEXT
from support.tiny import make_checkpoint, perturb

ANSWER_TOKENS = 400


def main() -> int:
    """See the module."""
    set_ray_environment()  # before ray is imported
    from support.faults.every import CASES, run

    parser = argparse.ArgumentParser(prog="python -m support.faults", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], choices=CASES, metavar="FAULT", help=", ".join(CASES))
    parser.add_argument("--write", type=Path, default=None, metavar="FILE.md", help="put the table between its markers")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = make_checkpoint(folder / "target", max_context=CONTEXT)
        draft = perturb(target, folder / "draft")
        outcomes: list[Outcome] = []
        for made in run(arguments.only or CASES, target, draft, ANSWER_TOKENS):
            print(f"{made.fault}: {made.client}", file=sys.stderr, flush=True)
            outcomes.append(made)
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    said = f"{table(outcomes)}\n\n{cores} cores, {platform.system()} {platform.machine()}, Python "
    said += f"{platform.python_version()}, load average {load:.1f}; tiny random models in float32."
    print(said)
    if arguments.write is not None:
        write(arguments.write, said)
    return int(not all(made.same_text for made in outcomes))


if __name__ == "__main__":
    sys.exit(main())
