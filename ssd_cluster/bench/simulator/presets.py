"""Published rows of the SSD paper (Kumar, Dao, May 2026: H100, batch 1) as settings of the model.

T_v is one over the published plain speed, and a proposal of K + 1 tokens costs the same. A draft forward takes 2.5 ms,
as published for the 0.6B draft, and K is what then fits beside a verification: floor((T_v - glue) / step), 6 and 3 (the
authors' own runs of the 70B pair use K = 6). The hit rate is the published one of the 70B pair, a miss waits for a
chain, rounds have no overhead. The acceptance is not published: it is taken from the published SD speed, so that the
SSD speed, and with it both ratios, are predictions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ssd_cluster.config import FanoutLaw, MissPolicy
from ssd_cluster.speculation.speed import acceptance_from_tokens
from ssd_cluster.types import Mode

STEP_MS = 2.5
_GUESSES = 4


@dataclass(frozen=True, slots=True)
class Preset:
    """One row of the paper: tokens/s and hit rate."""

    ar: float
    sd: float
    ssd: float
    hit_rate: float

    @property
    def verify_ms(self) -> float:
        return 1e3 / self.ar

    @property
    def k(self) -> int:
        return math.floor((self.verify_ms - STEP_MS) / STEP_MS)

    @property
    def acceptance(self) -> float:
        """Of the published SD speed: E(K) = tokens/s * (T_v + K draft forwards)."""
        return acceptance_from_tokens(self.sd * (self.verify_ms + self.k * STEP_MS) / 1e3, self.k)

    def settings(self) -> dict[str, Any]:
        """For ``SimulationSettings``."""
        return {
            "k": self.k,
            "rows": _GUESSES * (self.k + 1),
            "fanout": FanoutLaw.UNIFORM,
            "miss_policy": MissPolicy.ALWAYS_WAIT,
            "verify_ms": self.verify_ms,
            "step_ms": STEP_MS,
            "acceptance": self.acceptance,
            "hits": self.hit_rate,
            "hits_after_backup": self.hit_rate,
            "rounds": 10_000,
        }

    def published(self, mode: Mode) -> float:
        """Tokens/s of a mode."""
        return {Mode.AR: self.ar, Mode.SD: self.sd, Mode.SSD: self.ssd}[mode]


PRESETS = {
    "paper-llama-70b": Preset(ar=54.7, sd=161.8, ssd=255.8, hit_rate=0.85),
    "paper-qwen-32b": Preset(ar=88.8, sd=136.8, ssd=203.8, hit_rate=0.85),
    "paper-llama-70b-t0.7": Preset(ar=54.7, sd=138, ssd=200, hit_rate=0.812),
    "paper-llama-70b-t1": Preset(ar=54.7, sd=113, ssd=143, hit_rate=0.633),
}
