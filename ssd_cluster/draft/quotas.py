"""Limits of one target that its credits do not express: how often it opens sessions, and how much text they hold."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ssd_cluster.config_link import TargetLimits
from ssd_cluster.link.messages import NackCode

_TARGETS = 4096


@dataclass(slots=True)
class OpenRate:
    """A bucket of ``burst`` openings that fills at ``per_s``."""

    per_s: float
    burst: int
    left: float
    at: float

    def take(self, now: float) -> float:
        """Take one opening: 0.0, or the seconds until there is one; then nothing is taken."""
        self.left = min(float(self.burst), self.left + max(0.0, now - self.at) * self.per_s)
        self.at = now
        if self.left < 1.0:
            return (1.0 - self.left) / self.per_s
        self.left -= 1.0
        return 0.0


@dataclass(frozen=True, slots=True)
class OverQuota:
    """A limit that a target has reached: its name in metrics, what the target is told, and when to come again."""

    limit: str
    code: NackCode
    detail: str
    retry_s: float = 0.0


class Quotas:
    """Judges targets by their ids, so that a new stream brings no new quota.

    Args:
        limits: of each target.
    """

    def __init__(self, limits: TargetLimits) -> None:
        self._limits = limits
        self._rates: OrderedDict[str, OpenRate] = OrderedDict()

    def opening(self, target_id: str, now: float) -> OverQuota | None:
        """Count one opening of a session, or say why it may not be."""
        rate = self._rates.pop(target_id, None)
        if rate is None:
            rate = OpenRate(self._limits.opens_per_s, self._limits.opens_burst, self._limits.opens_burst, now)
        self._rates[target_id] = rate
        if len(self._rates) > _TARGETS:
            self._rates.popitem(last=False)
        wait_s = rate.take(now)
        if wait_s == 0.0:
            return None
        detail = f"this target opens more than {self._limits.opens_per_s:g} sessions per second"
        return OverQuota("opens", NackCode.BUSY, detail, wait_s)

    def holding(self, lengths: Iterable[int], length: int) -> OverQuota | None:
        """Whether a session of ``length`` tokens fits beside the target's others.

        Args:
            lengths: committed tokens of those.
            length: of this one.
        """
        most = self._limits.tokens
        if most is None:
            return None
        if length > most:
            return OverQuota("tokens", NackCode.TOO_LONG, f"a target's sessions may hold {most} tokens, not {length}")
        if sum(lengths) + length > most:
            return OverQuota("tokens", NackCode.BUSY, f"this target's sessions hold {most} tokens, which is the limit")
        return None
