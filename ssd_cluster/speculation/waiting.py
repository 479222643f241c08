"""Whether the rows of a batch that missed wait for a just-in-time draft (speculation.md section 5).

Waiting delays the whole batch, and not waiting costs only the rows that missed, so the answer depends on how many they
are. Estimates come from the rounds themselves; durations are handed in, no clock is read here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ssd_cluster.config import MissPolicy
from ssd_cluster.speculation.speed import expected_tokens

_PRIOR_ACCEPTANCE = 0.7


@dataclass(frozen=True, slots=True)
class MissSituation:
    """One decision.

    Attributes:
        batch: rows of the batch, B.
        missing: rows without a proposal that waiting would give one, m.
        wait: time for the just-in-time chain, w, in units of one verify forward.
        e_hit: tokens per round of a row with a drafted proposal, E_h.
        e_fallback: tokens per round of a row with the local fallback, E_f.
        p_hit: share of lookups that hit.
    """

    batch: int
    missing: int
    wait: float
    e_hit: float
    e_fallback: float
    p_hit: float


class WaitPolicy(ABC):
    """One policy of ``MissPolicy``."""

    @abstractmethod
    def should_wait(self, situation: MissSituation) -> bool:
        """True if the batch waits for the drafts of its missing rows."""


class WaitRule(WaitPolicy):
    """Wait iff it yields more tokens per second: m (E_h - E_f) > w [(B - m) E_h + m E_f]."""

    def should_wait(self, situation: MissSituation) -> bool:
        s = situation
        gained = s.missing * (s.e_hit - s.e_fallback)
        return gained > s.wait * ((s.batch - s.missing) * s.e_hit + s.missing * s.e_fallback)


class AlwaysWait(WaitPolicy):
    """Wait for every miss."""

    def should_wait(self, situation: MissSituation) -> bool:
        return situation.missing > 0


class NeverWait(WaitPolicy):
    """Never wait."""

    def should_wait(self, situation: MissSituation) -> bool:
        return False


class ThresholdPolicy(WaitPolicy):
    """The paper's switch: wait iff the batch is smaller than b*, however many rows missed."""

    def should_wait(self, situation: MissSituation) -> bool:
        s = situation
        return s.missing > 0 and s.batch < batch_threshold(s.p_hit, s.e_hit, s.e_fallback, s.wait)


def batch_threshold(p_hit: float, e_hit: float, e_miss: float, t_backup: float) -> float:
    """b* = log(1 - (rho - 1) / T_b) / log p_hit with rho = E_hit / (p_hit E_hit + (1 - p_hit) E_miss).

    Below b* a batch whose rows all wait for the just-in-time draft is faster than one whose misses use the fallback.
    Infinite where waiting wins at any batch, 0 where it never does.

    Args:
        p_hit: share of rows that hit, in [0, 1].
        e_hit: tokens per round with a drafted proposal.
        e_miss: tokens per round with the fallback.
        t_backup: time the batch waits, in verify times.
    """
    gain = e_hit / (p_hit * e_hit + (1 - p_hit) * e_miss) - 1
    if gain <= 0:
        return 0.0
    if gain >= t_backup or p_hit >= 1:
        return math.inf
    if p_hit <= 0:
        return 0.0
    return math.log(1 - gain / t_backup) / math.log(p_hit)


def make_policy(policy: MissPolicy) -> WaitPolicy:
    """The policy of a configured name."""
    kinds: dict[MissPolicy, type[WaitPolicy]] = {
        MissPolicy.RULE: WaitRule,
        MissPolicy.ALWAYS_WAIT: AlwaysWait,
        MissPolicy.NEVER_WAIT: NeverWait,
        MissPolicy.THRESHOLD: ThresholdPolicy,
    }
    return kinds[policy]()


class WaitEstimator:
    """Running means of what a decision needs, from the rounds of one target.

    Before anything is measured a wait counts as free, so that the first misses wait and show what it costs. Each miss
    that does not wait lets the estimate fade, so that one slow moment is not believed for ever; the next wait, which
    shows whether it still holds, restores it.

    Args:
        policy: how to decide; may be exchanged at any time.
        k: lookahead, for the prior of E_h.
        rate: weight of a new observation.
        fade: factor on the estimated wait per miss that did not wait.
    """

    def __init__(self, policy: WaitPolicy, k: int, *, rate: float = 0.05, fade: float = 0.98) -> None:
        self.policy = policy
        self._rate = rate
        self._fade = fade
        self._e_hit = expected_tokens(_PRIOR_ACCEPTANCE, k)
        self._e_fallback = 1.0
        self._p_hit = 0.5
        self._wait_s: float | None = None
        self._trust = 1.0
        self._verify_s: float | None = None

    @property
    def wait_s(self) -> float | None:
        """Mean duration of a wait, seconds; None before the first."""
        return self._wait_s

    def observe_row(self, *, drafted: bool, tokens: int) -> None:
        """One row's round: ``tokens`` kept plus t*, with a proposal from a draft or with the local fallback."""
        if drafted:
            self._e_hit += self._rate * (tokens - self._e_hit)
        else:
            self._e_fallback += self._rate * (tokens - self._e_fallback)

    def observe_lookup(self, *, hit: bool) -> None:
        """One cache lookup."""
        self._p_hit += self._rate * (hit - self._p_hit)

    def observe_verify(self, seconds: float) -> None:
        """Duration of one verify forward."""
        if self._verify_s is None:
            self._verify_s = seconds
        self._verify_s += self._rate * (seconds - self._verify_s)

    def observe_wait(self, seconds: float) -> None:
        """Duration of one wait for just-in-time chains, timed out or not."""
        self._trust = 1.0
        if self._wait_s is None:
            self._wait_s = seconds
        self._wait_s += self._rate * (seconds - self._wait_s)

    def situation(self, batch: int, missing: int) -> MissSituation:
        """The estimates for a batch of ``batch`` rows, ``missing`` of them without a proposal."""
        wait = self._trust * (self._wait_s or 0.0) / self._verify_s if self._verify_s else 0.0
        return MissSituation(batch, missing, wait, self._e_hit, self._e_fallback, self._p_hit)

    def should_wait(self, batch: int, missing: int) -> bool:
        """Decide for one batch."""
        if missing == 0:
            return False
        decision = self.policy.should_wait(self.situation(batch, missing))
        if not decision:
            self._trust *= self._fade
        return decision
