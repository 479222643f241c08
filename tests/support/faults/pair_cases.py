"""Faults between one target and one draft. The target has no other draft: meanwhile it decodes with its fallback."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from ssd_cluster.link.limits import MAX_INVALID_FRAMES
from support.faults.pair_scene import PairScene
from support.faults.trial import Outcome, Trial
from support.intruder import Intruder
from support.tiny import perturb

CUT_S = 5.0


def draft_stalls(scene: PairScene, pause_s: float = CUT_S) -> Outcome:
    trial = Trial(scene, f"draft stopped (SIGSTOP) for {pause_s:g} s, then SIGCONT; no other draft")
    before = trial.failures("late")
    trial.strikes()
    scene.signal(signal.SIGSTOP)
    try:
        trial.counted("late", before)
        time.sleep(max(0.0, trial.began + pause_s - time.monotonic()))
    finally:
        scene.signal(signal.SIGCONT)
    trial.over()
    trial.drafts_help()
    return trial.outcome("recovery from SIGCONT on")


def link_is_cut(scene: PairScene, pause_s: float = CUT_S) -> Outcome:
    trial = Trial(scene, f"link cut for {pause_s:g} s without a reset, then healed; no other draft")
    before = trial.failures("late")
    trial.strikes()
    scene.proxy.cut()
    try:
        trial.counted("late", before)
        time.sleep(max(0.0, trial.began + pause_s - time.monotonic()))
    finally:
        scene.proxy.heal()
    trial.over()
    trial.drafts_help()
    return trial.outcome("recovery from the healing on")


def draft_restarts(scene: PairScene) -> Outcome:
    trial = Trial(scene, "draft killed (SIGKILL) and started again on the same port")
    before = trial.failures("stream")
    trial.strikes()
    scene.draft.kill()
    trial.counted("stream", before)
    scene.start_draft()
    trial.over()
    trial.drafts_help()
    return trial.outcome("recovery from the new process listening on")


def peer_sends_garbage(scene: PairScene) -> Outcome:
    return _intrusion(scene, "garbage frames from another peer", [b"\xff\xff\xff"] * (MAX_INVALID_FRAMES + 1))


def peer_sends_too_much(scene: PairScene, size: int) -> Outcome:
    return _intrusion(scene, f"a frame of {size / 2**20:.0f} MiB (limit 4) from another peer", [bytes(size)])


def _intrusion(scene: PairScene, fault: str, frames: list[bytes]) -> Outcome:
    trial = Trial(scene, fault)
    before = trial.failures("stream")
    intruder = Intruder(f"127.0.0.1:{scene.port}")
    ends: list[grpc.StatusCode] = []
    trial.strikes()
    try:
        intruder.send(*frames)
        trial.detected(lambda: ends.append(intruder.ended()) or ends, "the draft ends the peer's stream")
    finally:
        intruder.close()
    assert ends[0] in (grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED), ends
    trial.drafts_help()
    made = trial.outcome("until the peer's own stream is ended; no other one is touched")
    assert trial.failures("stream") == before, "the target has lost its stream too"
    return made


def draft_has_another_tokenizer(scene: PairScene) -> Outcome:
    draft = scene.models[1]
    stranger = another_tokenizer(draft, draft.with_name("stranger"))
    trial = Trial(scene, "draft replaced by one with another tokenizer, then by the right one")
    before = trial.failures("mismatch")
    scene.draft.kill()
    scene.start_draft(stranger)
    trial.strikes()
    trial.counted("mismatch", before)
    scene.draft.kill()
    scene.start_draft()
    trial.over()
    trial.drafts_help()
    return trial.outcome("detection from the wrong process listening on, recovery from the right one")


CASES: dict[str, Callable[[PairScene], Outcome]] = {
    "stall": draft_stalls,
    "link-cut": link_is_cut,
    "restart": draft_restarts,
    "other-tokenizer": draft_has_another_tokenizer,
    "garbage": peer_sends_garbage,
    "oversized": partial(peer_sends_too_much, size=6 << 20),
    "huge": partial(peer_sends_too_much, size=16 << 20),
}
"""A frame of up to twice the limit reaches the draft, which refuses it; a larger one gRPC refuses."""


def another_tokenizer(checkpoint: Path, folder: Path) -> Path:
    """A copy of a checkpoint whose tokenizer has two letters swapped."""
    made = perturb(checkpoint, folder, 0.0)
    data = json.loads((made / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (made / "tokenizer.json").write_text(json.dumps(data))
    return made
