"""Which outcomes to guess: how many guesses F_k of t* each kept length k gets (speculation.md section 3).

A planner turns a budget of R branches into F_0..F_K. Whatever the law, the integers come from one greedy allocation:
the next branch goes where it gains most, which is exact because gains fall with every guess at the same k.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ssd_cluster.config import FanoutLaw
from ssd_cluster.speculation.statistics import OutcomeStatistics, Prior

Gain = Callable[[int, int], float | tuple[float, float]]
Ceiling = int | Sequence[int] | None


class FanoutPlanner(ABC):
    """One law of fan-out."""

    @abstractmethod
    def plan(self, R: int, K: int, statistics: OutcomeStatistics, max_per_k: Ceiling = None) -> list[int]:
        """F_k for k = 0..K.

        Args:
            R: branches in all; the result never sums to more.
            K: tokens of the proposal being verified (0: only k = 0 exists).
            statistics: outcomes seen so far.
            max_per_k: most guesses for any k, or one ceiling per k (0 for lengths that are not served).
        """


class UniformPlanner(FanoutPlanner):
    """F_k = F: the same for every kept length; a remainder of R / (K + 1) goes to the shortest lengths."""

    def plan(self, R: int, K: int, statistics: OutcomeStatistics, max_per_k: Ceiling = None) -> list[int]:
        return allocate(R, _ceilings(R, K, max_per_k), lambda k, f: (-float(f), -float(k)))


class GeometricPlanner(FanoutPlanner):
    """Theorem 12 of Kumar et al. 2026: acceptance a per token, 1 - p_hit(F) = c F^-r (c_K after full acceptance).

    Minimises sum_k P(k) c_k F_k^-r over integers. As in the theorem no length with P(k) > 0 is left without a guess
    while branches last (0^-r is infinite). The acceptance is the measured one, r and the c's are the prior's.
    """

    def __init__(self, prior: Prior | None = None) -> None:
        self._prior = prior if prior is not None else Prior()

    def plan(self, R: int, K: int, statistics: OutcomeStatistics, max_per_k: Ceiling = None) -> list[int]:
        a, r = statistics.acceptance, self._prior.r
        weights = geometric_weights(a, K, c=self._prior.c, c_full=self._prior.c_full)

        def gain(k: int, f: int) -> tuple[float, float]:
            if f == 0:
                return math.inf, weights[k]
            return weights[k] * (f**-r - (f + 1) ** -r), 0.0

        return allocate(R, _ceilings(R, K, max_per_k), gain)


class MeasuredPlanner(FanoutPlanner):
    """The R pairs (k, f) of largest P(k) P(rank = f | k), both counted on line: maximises the hit rate."""

    def plan(self, R: int, K: int, statistics: OutcomeStatistics, max_per_k: Ceiling = None) -> list[int]:
        ceilings = _ceilings(R, K, max_per_k)
        kept = statistics.kept_probabilities(K)
        rejected = statistics.rank_probabilities(False, max(ceilings[:-1], default=0))
        full = statistics.rank_probabilities(True, ceilings[-1])
        return allocate(R, ceilings, lambda k, f: kept[k] * (full if k == K else rejected)[f])


def make_planner(law: FanoutLaw, prior: Prior | None = None) -> FanoutPlanner:
    """The planner of a configured law; ``prior`` matters to ``geometric`` only."""
    if law is FanoutLaw.UNIFORM:
        return UniformPlanner()
    if law is FanoutLaw.GEOMETRIC:
        return GeometricPlanner(prior)
    return MeasuredPlanner()


def allocate(R: int, ceilings: Sequence[int], gain: Gain) -> list[int]:
    """Give R units to len(ceilings) lists, one at a time, each where ``gain(k, units it already has)`` is largest.

    Exact for gains that do not rise along a list; ties go to the smallest k. Costs O(R log K).
    """
    counts = [0] * len(ceilings)
    heap = [(_negated(gain(k, 0)), k) for k, most in enumerate(ceilings) if most > 0]
    heapq.heapify(heap)
    for _ in range(R):
        if not heap:
            break
        _, k = heap[0]
        counts[k] += 1
        if counts[k] < ceilings[k]:
            heapq.heapreplace(heap, (_negated(gain(k, counts[k])), k))
        else:
            heapq.heappop(heap)
    return counts


def geometric_fanout(R: float, K: int, a: float, r: float) -> list[float]:
    """Theorem 12 in real numbers: F_k = F_0 a^{k/(1+r)} for k < K, F_K = F_0 a^{K/(1+r)} (1-a)^{-1/(1+r)}, sum R.

    Args:
        a: acceptance, in (0, 1).
        r: exponent of 1 - p_hit(F) = F^-r, positive.
    """
    weights = [weight ** (1 / (1 + r)) for weight in geometric_weights(a, K)]
    total = sum(weights)
    return [R * weight / total for weight in weights]


def geometric_weights(a: float, K: int, *, c: float = 1.0, c_full: float = 1.0) -> list[float]:
    """P(k) c_k for constant acceptance ``a``: (1 - a) a^k c for k < K, a^K c_full for k = K."""
    return [*((1 - a) * a**k * c for k in range(K)), a**K * c_full]


def _ceilings(R: int, K: int, max_per_k: Ceiling) -> list[int]:
    if max_per_k is None:
        return [R] * (K + 1)
    if isinstance(max_per_k, int):
        return [min(R, max_per_k)] * (K + 1)
    if len(max_per_k) != K + 1:
        raise ValueError(f"{len(max_per_k)} ceilings for the {K + 1} kept lengths of a proposal of {K} tokens")
    return [min(R, most) for most in max_per_k]


def _negated(gain: float | tuple[float, float]) -> tuple[float, float]:
    return (-gain[0], -gain[1]) if isinstance(gain, tuple) else (-gain, 0.0)
