"""Faults between hosts: a draft's host loses its network, or goes for good. Another draft is on another host."""

from __future__ import annotations

import time
from collections.abc import Callable

from support.faults.hosts_scene import HostsScene
from support.faults.trial import Outcome, Trial, wait_for

CUT_S = 5.0


def host_is_cut_off(scene: HostsScene, pause_s: float = CUT_S) -> Outcome:
    trial = Trial(scene, f"a draft's host off the network for {pause_s:g} s, then back; another draft on another host")
    index = _holder(scene)
    before = trial.failures("late")
    trial.strikes()
    scene.hosts.cut(index)
    try:
        trial.counted("late", before)
        trial.drafts_help()
        time.sleep(max(0.0, trial.began + pause_s - time.monotonic()))
    finally:
        scene.hosts.heal(index)
    made = trial.outcome("recovery: sessions on the other draft")
    wait_for(lambda: len(scene.drafts()) == 2, "both drafts are in the view")
    return made


def host_is_lost(scene: HostsScene) -> Outcome:
    trial = Trial(scene, "a draft's host switched off; another draft on another host")
    index = _holder(scene)
    before = trial.failures("late")
    trial.strikes()
    scene.hosts.cut(index)  # first: a host without power does not say goodbye
    scene.hosts[index].kill()
    trial.counted("late", before)
    trial.drafts_help()
    return trial.outcome("recovery: sessions on the other draft")


CASES: dict[str, Callable[[HostsScene], Outcome]] = {"host-cut-off": host_is_cut_off, "host-lost": host_is_lost}
"""The last one leaves one draft."""


def _holder(scene: HostsScene) -> int:
    """Index of the host whose draft holds the most sessions."""
    found: list[int] = []

    def holds() -> bool:
        held = {address: one["sessions"] for address, one in scene.drafts().items()}
        found[:] = [i for i, host in enumerate(scene.hosts.hosts) if held.get(host.address, 0) > 0]
        found.sort(key=lambda i: -held[scene.hosts[i].address])
        return bool(found)

    wait_for(holds, "a draft holds sessions")
    return found[0]
