"""A synthetic draft in a process of its own.

python -m ssd_cluster.bench.synthetic.process SETTINGS SCRIPT    (as ssd_cluster.draft.process, and a script file)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ssd_cluster.bench.synthetic.sampler import SyntheticSampler
from ssd_cluster.bench.synthetic.script import Scripts
from ssd_cluster.draft import process
from ssd_cluster.draft.engine import load_draft

MODULE = __name__ if __name__ != "__main__" else "ssd_cluster.bench.synthetic.process"


def main(arguments: Sequence[str]) -> int:
    """Serve until standard input ends; the exit code of ``ssd_cluster.draft.process``."""
    *settings, script = arguments
    scripts = Scripts.read(Path(script))
    return process.main(settings, partial(load_draft, sampler=partial(SyntheticSampler, scripts)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
