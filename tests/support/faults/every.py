"""Every fault there is, by name."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from support.faults import hosts_cases, pair_cases, pool_cases
from support.faults.hosts_scene import HostsScene
from support.faults.pair_scene import PairScene
from support.faults.pool_scene import PoolScene
from support.faults.trial import Outcome
from support.hosts import unavailable

_SCENES = ((pair_cases.CASES, PairScene), (pool_cases.CASES, PoolScene), (hosts_cases.CASES, HostsScene))
CASES = tuple(name for cases, _ in _SCENES for name in cases)


def run(wanted: Collection[str], target: Path, draft: Path, max_tokens: int) -> Iterator[Outcome]:
    """What the wanted faults do to these checkpoints; those between hosts are left out where there can be none."""
    for cases, scene in _SCENES:
        chosen = [case for name, case in cases.items() if name in wanted]
        reason = unavailable() if chosen and scene is HostsScene else None
        if reason is not None:
            print(f"left out: faults between hosts ({reason})", file=sys.stderr)
        elif chosen:
            with scene(target, draft, max_tokens) as made:
                yield from (case(made) for case in chosen)
