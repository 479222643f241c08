"""What one target's rounds have looked like: how many proposed tokens are kept, and where t* stood among the guesses.

Both are estimated as hazards, so that every observation counts for what it shows and no more: a proposal of n tokens
says nothing about position n + 1, and a t* that was not among F guesses says only that its rank is F or more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ssd_cluster.types import ProposalKind

_BUCKET_BOUNDS = (0.0, 0.35, 0.65, 0.85, 1.15)


@dataclass(frozen=True, slots=True)
class Prior:
    """Beliefs before anything was seen: constant acceptance, and misses that fall as a power law.

    1 - p_hit(F) = c F^-r after a rejection and c_full F^-r after full acceptance. The defaults for c and r are fitted
    to the miss rates of Kumar et al. 2026 (greedy, after a primary round: F = 2 -> .454, F = 8 -> .203).

    Attributes:
        acceptance: probability that a proposed token is kept, given those before it.
        r: exponent of the power law.
        c: miss probability of a single guess after a rejection.
        c_full: the same after full acceptance, where no token is known to be wrong.
        weight: observations that a belief is worth.
    """

    acceptance: float = 0.7
    r: float = 0.57
    c: float = 0.67
    c_full: float = 0.45
    weight: float = 4.0

    def rank_hazard(self, rank: int, full: bool) -> float:
        """Probability that guess ``rank`` (0 = first) is t*, given that no earlier guess was."""
        if rank == 0:
            return 1.0 - (self.c_full if full else self.c)
        return 1.0 - float(((rank + 1) / rank) ** -self.r)


@dataclass(slots=True)
class _Hazards:
    """Counts of trials and events per index."""

    trials: list[float] = field(default_factory=list)
    events: list[float] = field(default_factory=list)

    def add(self, index: int, event: bool) -> None:
        missing = index + 1 - len(self.trials)
        if missing > 0:
            self.trials += [0.0] * missing
            self.events += [0.0] * missing
        self.trials[index] += 1.0
        self.events[index] += event

    def at(self, index: int) -> tuple[float, float]:
        return (self.trials[index], self.events[index]) if index < len(self.trials) else (0.0, 0.0)

    def halve(self) -> None:
        self.trials = [t / 2 for t in self.trials]
        self.events = [e / 2 for e in self.events]


class OutcomeStatistics:
    """Outcome counts of one (target, kind, temperature bucket), with exponential forgetting.

    Args:
        prior: beliefs that the counts replace.
        memory: rounds after which all counts are halved.
    """

    def __init__(self, prior: Prior | None = None, *, memory: int = 1024) -> None:
        self._prior = prior if prior is not None else Prior()
        self._memory = memory
        self._since_halving = 0
        self._kept = _Hazards()
        self._ranks = {False: _Hazards(), True: _Hazards()}
        self.rounds = 0

    def observe(self, n: int, k: int, rank: int | None = None, guesses: int | None = None) -> None:
        """Count one outcome.

        Args:
            n: proposed tokens; 0 (a plain step) counts as full acceptance of nothing.
            k: how many of them were kept.
            rank: place of t* among the guesses for k, 0 first; None if it was not among them.
            guesses: how many guesses there were for k; None if t* was not compared with any. With a rank, only those up
                to it are informative.
        """
        if not 0 <= k <= n:
            raise ValueError(f"kept length {k} is not within the proposal's {n} tokens")
        self.rounds += 1
        for position in range(min(k + 1, n)):
            self._kept.add(position, position < k)
        self.observe_rank(k == n, rank, guesses)
        self._since_halving += 1
        if self._since_halving >= self._memory:
            self._since_halving = 0
            for hazards in (self._kept, *self._ranks.values()):
                hazards.halve()

    def observe_rank(self, full: bool, rank: int | None, guesses: int | None) -> None:
        """Count where t* stood alone; ``full``: every proposed token was kept. See ``observe``."""
        seen = rank + 1 if rank is not None else (guesses or 0)
        for index in range(seen):
            self._ranks[full].add(index, index == rank)

    @property
    def acceptance(self) -> float:
        """Probability that a proposed token is kept, given that those before it were; pooled over positions."""
        weight = self._prior.weight
        trials, events = sum(self._kept.trials), sum(self._kept.events)
        return (events + weight * self._prior.acceptance) / (trials + weight)

    def acceptance_at(self, position: int) -> float:
        """The same for one position (0 = first proposed token), drawn towards the pooled value where data are few."""
        trials, events = self._kept.at(position)
        return (events + self._prior.weight * self.acceptance) / (trials + self._prior.weight)

    def kept_probabilities(self, n: int) -> list[float]:
        """P(k) for k = 0..n of a proposal of ``n`` tokens; sums to 1."""
        reached, law = 1.0, []
        for position in range(n):
            accepted = self.acceptance_at(position)
            law.append(reached * (1.0 - accepted))
            reached *= accepted
        return [*law, reached]

    def expected_tokens(self, n: int) -> float:
        """E(n): mean tokens of a round that verifies ``n`` tokens, t* included."""
        return 1.0 + sum(k * p for k, p in enumerate(self.kept_probabilities(n)))

    def rank_probabilities(self, full: bool, size: int) -> list[float]:
        """P(rank of t* = f), f = 0..size-1, after a rejection or after full acceptance (``full``).

        Made non-increasing by averaging neighbours that are out of order (isotonic regression), since guesses are
        listed best first and the planner's exactness rests on it. The total mass is unchanged.
        """
        hazards, weight = self._ranks[full], self._prior.weight
        absent, law = 1.0, []
        for rank in range(size):
            trials, events = hazards.at(rank)
            hazard = (events + weight * self._prior.rank_hazard(rank, full)) / (trials + weight)
            law.append(absent * hazard)
            absent *= 1.0 - hazard
        return non_increasing(law)


def non_increasing(values: list[float]) -> list[float]:
    """The closest non-increasing sequence in least squares (pool adjacent violators); same sum."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] * count < total * pools[-1][1]:
            before, length = pools.pop()
            total, count = total + before, count + length
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]


def temperature_bucket(temperature: float) -> int:
    """Index of the range a temperature falls into; 0 is greedy alone."""
    return sum(temperature > bound for bound in _BUCKET_BOUNDS)


class StatisticsBook:
    """One ``OutcomeStatistics`` per (target id, kind, temperature bucket)."""

    def __init__(self, prior: Prior | None = None, *, memory: int = 1024) -> None:
        self._prior = prior
        self._memory = memory
        self._entries: dict[tuple[str, ProposalKind, int], OutcomeStatistics] = {}

    def of(self, target_id: str, kind: ProposalKind, temperature: float) -> OutcomeStatistics:
        """The entry, made on first use."""
        key = (target_id, kind, temperature_bucket(temperature))
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = OutcomeStatistics(self._prior, memory=self._memory)
        return entry

    def forget(self, target_id: str) -> None:
        """Drop a target's entries when it has gone for good."""
        self._entries = {key: entry for key, entry in self._entries.items() if key[0] != target_id}
