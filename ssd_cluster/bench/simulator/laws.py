"""How verifications end in the model: kept lengths and the rank of t* among the draft's guesses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ssd_cluster.bench.simulator.settings import HitLaw, SimulationSettings

MISSED = 1 << 30
"""Rank of a t* that no number of guesses reaches."""


class OutcomeLaw(ABC):
    """Draws outcomes. ``drafted``: the verified proposal came from the draft; ``cached``: at once, from the cache."""

    @abstractmethod
    def kept(self, n: int, drafted: bool) -> int:
        """Kept tokens of a proposal of ``n``."""

    @abstractmethod
    def rank(self, full: bool, cached: bool) -> int:
        """Place of t* among the guesses for its kept length, 0 first; ``full``: all proposed tokens were kept."""


class PowerLaws(OutcomeLaw):
    """Acceptance per position; misses of F guesses fall as c F^-r (speculation.md, section 3).

    Args:
        settings: acceptances and hit laws.
        seed: of the draws.
    """

    def __init__(self, settings: SimulationSettings, seed: int) -> None:
        self._draws = _Uniforms(seed)
        self._acceptance = settings.acceptance
        self._fallback = settings.fallback_acceptance
        self._primary, self._backup = settings.hits, settings.hits_after_backup

    def kept(self, n: int, drafted: bool) -> int:
        a = self._acceptance if drafted else (self._fallback,)
        return kept_tokens(n, a, self._draws)

    def rank(self, full: bool, cached: bool) -> int:
        law = self._primary if cached else self._backup
        return power_rank(law, full, self._draws.next())


class RecordedLaws(OutcomeLaw):
    """What a round trace has shown: acceptance per position, and how often t* stood at which rank.

    Args:
        acceptance: per position of a drafted proposal, given that those before were kept.
        fallback: the same for local proposals.
        ranks: by (full, cached) the probabilities of rank 0, 1, ...; what is missing to 1 was never guessed.
        seed: of the draws.
    """

    def __init__(
        self,
        acceptance: Sequence[float],
        fallback: Sequence[float],
        ranks: dict[tuple[bool, bool], Sequence[float]],
        seed: int,
    ) -> None:
        self._draws = _Uniforms(seed)
        self._acceptance = {True: tuple(acceptance), False: tuple(fallback)}
        self._ranks = {key: np.cumsum(law) for key, law in ranks.items()}

    def kept(self, n: int, drafted: bool) -> int:
        return kept_tokens(n, self._acceptance[drafted], self._draws)

    def rank(self, full: bool, cached: bool) -> int:
        cumulative = self._ranks[full, cached]
        at = int(np.searchsorted(cumulative, self._draws.next(), side="right"))
        return at if at < len(cumulative) else MISSED


class _Uniforms:
    """Uniform draws in [0, 1), generated in blocks."""

    def __init__(self, seed: int, size: int = 4096) -> None:
        self._rng = np.random.default_rng(seed)
        self._size = size
        self._values: list[float] = []

    def next(self) -> float:
        if not self._values:
            self._values = self._rng.random(self._size).tolist()
        return self._values.pop()


def kept_tokens(n: int, acceptance: Sequence[float], draws: _Uniforms) -> int:
    """Tokens kept of ``n``; position j is kept with ``acceptance[j]`` (the last entry from there on)."""
    for position in range(n):
        if draws.next() >= acceptance[min(position, len(acceptance) - 1)]:
            return position
    return n


def power_rank(law: HitLaw, full: bool, u: float) -> int:
    """The rank at which a uniform ``u`` falls under P(rank >= F) = c F^-r, F >= 1."""
    c = law.c_full if full else law.c
    if u >= c:
        return 0
    if law.r == 0 or u <= 0:
        return MISSED
    exponent = math.log(c / u) / law.r
    return MISSED if exponent > math.log(MISSED) else max(1, math.ceil(math.exp(exponent)) - 1)
