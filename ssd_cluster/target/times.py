"""Where the time of a target's rounds goes; read by the benchmark, fed by the round loop."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssd_cluster.target.trace import TargetTrace

VERIFY_PHASES = ("forward", "noise", "process", "verify")
"""What makes up T_v, the time from the start of a forward to its outcomes."""
PHASES = (*VERIFY_PHASES, "draft_wait", "link", "other")
_SAMPLES = 8192
_RATE = 0.1


@dataclass(slots=True)
class RoundTimes:
    """Sums over pure decoding rounds (no prompt tokens among the rows), in seconds.

    Attributes:
        rounds: number of rounds.
        tokens: tokens emitted in them.
        seconds: time by phase. ``forward``: the model; ``noise``: rows of it that were not drawn ahead; ``process``:
            processors and softmax; ``verify``: the rule; ``draft_wait``: waiting for blocks, chains or laws; ``link``:
            taking in messages, lookups, sending commits; ``other``: finish logic, KV bookkeeping, text, events,
            scheduling. On CUDA the forward runs on while ``process`` starts, and is waited for in ``verify``.
        hit_path: samples of the time from the end of a forward to the start of the next one, of rounds in which nobody
            waited and every row that could have a proposal had one from its draft (without drafts: all rounds).
        hit_rounds: samples of the time of whole rounds in which every row hit.
        plans: decoding rounds by what the controller had planned for them: (k, rows, wait).
        verify_s: running mean of ``VERIFY_PHASES`` together, the T_v; None before the first round.
        trace: where every round is recorded; None: nowhere.
    """

    rounds: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    hit_path: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    hit_rounds: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    plans: Counter[tuple[int, int, bool]] = field(default_factory=Counter)
    verify_s: float | None = None
    trace: TargetTrace | None = None

    def add(self, phases: dict[str, float], tokens: int) -> None:
        """Count one round."""
        self.rounds += 1
        self.tokens += tokens
        for phase, seconds in phases.items():
            self.seconds[phase] += seconds
        verify = sum(phases[phase] for phase in VERIFY_PHASES)
        self.verify_s = verify if self.verify_s is None else self.verify_s + _RATE * (verify - self.verify_s)

    def reset(self) -> None:
        """Start again from zero; the running mean of T_v stays."""
        self.rounds = self.tokens = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.hit_path.clear()
        self.hit_rounds.clear()
        self.plans.clear()

    def close(self) -> None:
        """End the trace, if there is one."""
        if self.trace is not None:
            self.trace.close()


class Stopwatch:
    """Laps of one round on the engine's clock. ``began``: its start; ``now``: the end of the last of its ``laps``."""

    def __init__(self, now: float) -> None:
        self.began = self.now = now
        self.laps: list[tuple[str, float]] = []
        self.phases = dict.fromkeys(PHASES, 0.0)

    def lap(self, phase: str, now: float) -> None:
        """Charge the time since the last lap to ``phase``."""
        self.phases[phase] += now - self.now
        self.laps.append((phase, now))
        self.now = now
