"""Faults of a pool of drafts and of Ray around it. Another draft is there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from support.faults.pool_scene import PoolScene
from support.faults.trial import DEADLINE_S, Outcome, Trial, wait_for


def draft_is_killed(scene: PoolScene) -> Outcome:
    trial = Trial(scene, "draft killed (SIGKILL); another one in the pool")
    before = trial.failures("stream")
    name, draft = _holder(scene)
    trial.strikes()
    os.kill(draft["pid"], signal.SIGKILL)
    trial.counted("stream", before)
    trial.drafts_help()
    wait_for(lambda: name not in scene.drafts() and len(scene.drafts()) == 2, "Serve has started another draft")
    replaced = time.monotonic() - trial.began
    made = trial.outcome(f"recovery: sessions on the other draft; Serve had a new replica after {replaced:.1f} s")
    scene.whole()
    return made


def draft_stalls(scene: PoolScene, pause_s: float = 5.0) -> Outcome:
    trial = Trial(scene, f"draft stopped (SIGSTOP) for {pause_s:g} s, then SIGCONT; another one in the pool")
    before = trial.failures("late")
    draft = _holder(scene)[1]
    trial.strikes()
    os.kill(draft["pid"], signal.SIGSTOP)
    try:
        trial.counted("late", before)
        trial.drafts_help()
        time.sleep(max(0.0, trial.began + pause_s - time.monotonic()))
    finally:
        os.kill(draft["pid"], signal.SIGCONT)
    made = trial.outcome("recovery: sessions on the other draft")
    scene.whole()
    return made


def pool_scales_down(scene: PoolScene) -> Outcome:
    trial = Trial(scene, "pool scaled from 2 to 1 with live sessions")
    lost = trial.failures("stream")
    names = set(scene.drafts())
    trial.strikes()
    scene.deploy(drafts=1)

    def leaving() -> set[str]:
        return {name for name, one in scene.drafts().items() if one["draining"]} or names - set(scene.drafts())

    trial.detected(leaving, "a draft drains")

    def moved() -> bool:
        left = {name: one for name, one in scene.drafts().items() if not one["draining"]}
        return len(left) == 1 and sum(next(iter(left.values()))["targets"].values()) == len(trial.readers)

    trial.recovered(moved, "all sessions are on the draft that stays")
    wait_for(lambda: scene.states("drafts") == ["RUNNING"], "the other one has gone")
    made = trial.outcome("detection: a draft drains; recovery: all sessions on the one that stays")
    assert trial.failures("stream") == lost, "a draft went before its sessions had left"
    scene.deploy(drafts=2)
    scene.whole()
    return made


def controller_is_killed(scene: PoolScene) -> Outcome:
    trial = Trial(scene, "Serve controller killed (SIGKILL)")
    lost = trial.failures("stream")
    pid = scene.controller_pid()
    trial.strikes()
    os.kill(pid, signal.SIGKILL)
    trial.recovered(lambda: _answers(scene, pid), "another controller answers")
    trial_hits = trial.failures("stream")
    made = trial.outcome("no stream or session notices; recovery: another controller answers")
    assert trial_hits == lost, "a session was lost"
    scene.whole()
    return made


def target_is_killed(scene: PoolScene) -> Outcome:
    trial = Trial(scene, "target killed (SIGKILL)")
    wait_for(lambda: _held(scene) == (2, 2), "the drafts hold both sessions and their leases")
    pid = scene.target_pid()
    trial.strikes()
    os.kill(pid, signal.SIGKILL)
    trial.detected(lambda: _held(scene) == (0, 0), "sessions and leases are gone from the drafts")
    for reader in trial.readers:
        reader.join(DEADLINE_S)
        assert reader.failure is not None, "the client was not told"
    trial.recovered(lambda: scene.healthy(), "another target answers")
    for params in trial.params:
        assert "".join(scene.ask(params)) == scene.plain(params), "a new request is answered wrongly"
    said = sorted({f"{type(r.failure).__name__}: {r.failure}" for r in trial.readers})
    remark = "detection: sessions and leases gone from the drafts; recovery: a new request is answered"
    return trial.broken(f"error ({'; '.join(said)}); what had come is right", remark)


CASES: dict[str, Callable[[PoolScene], Outcome]] = {
    "draft-killed": draft_is_killed,
    "draft-stalls": draft_stalls,
    "scale-down": pool_scales_down,
    "controller-killed": controller_is_killed,
    "target-killed": target_is_killed,
}


def _holder(scene: PoolScene) -> tuple[str, dict[str, Any]]:
    """A draft that holds sessions, the more the better."""
    found: list[tuple[str, dict[str, Any]]] = []

    def holds() -> bool:
        found[:] = sorted(scene.drafts().items(), key=lambda item: -item[1]["sessions"])
        return bool(found) and found[0][1]["sessions"] > 0

    wait_for(holds, "a draft holds sessions")
    return found[0]


def _held(scene: PoolScene) -> tuple[int, int]:
    """Sessions and leases of all drafts."""
    drafts = scene.drafts().values()
    return sum(one["sessions"] for one in drafts), sum(one["leases"] for one in drafts)


def _answers(scene: PoolScene, old: int) -> bool:
    try:
        return scene.controller_pid() != old and len(scene.states("drafts")) == 2
    except Exception:  # Ray's own, of many kinds, while there is none
        return False
