"""Everything a controller knows from the rounds of its target: the inputs of the speed model, kept up to date."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ssd_cluster.speculation.costs import RoundCosts
from ssd_cluster.speculation.drafting import DraftTimes
from ssd_cluster.speculation.planning import World
from ssd_cluster.speculation.statistics import OutcomeStatistics
from ssd_cluster.types import LookupResult

_MEMORY_ROUNDS = 256
_LOOKUPS = 256
_WINDOW = 128
_RATE = 0.05
_ENOUGH_LOOKUPS = 8
_SHRINK = 16.0
_BELIEVED = 48
_LEAST_SCALE, _MOST_SCALE = 0.2, 1.5


@dataclass(frozen=True, slots=True)
class RoundSample:
    """One round of the target.

    Attributes:
        now: its end.
        batch: rows that decided.
        tokens: tokens of the forward, proposals included.
        emitted: tokens that it gave.
        seconds: all of it, waiting for drafts included.
        waited: the part spent waiting for drafts.
        attached: sessions were open, so drafts may have worked.
        decoding_only: no prompt tokens among the rows; only such rounds say what decoding costs.
    """

    now: float
    batch: int
    tokens: int
    emitted: int
    seconds: float
    waited: float
    attached: bool
    decoding_only: bool


class Measured:
    """Observations of one target.

    Attributes:
        costs: T_v(B, N).
        drafting: t(rows) and the link.
        outcomes: kept lengths and ranks of t*.
        lookups, drafted: lookups, and verified drafted proposals, since the last ``restart``.
        chain_k: most tokens of a just-in-time chain, as configured; None: as many as a proposal has.
    """

    def __init__(self) -> None:
        self.costs = RoundCosts()
        self.drafting = DraftTimes()
        self.outcomes = OutcomeStatistics(memory=_MEMORY_ROUNDS)
        self.lookups = self.drafted = 0
        self.chain_k: int | None = None
        self._found: deque[tuple[bool, int, int]] = deque(maxlen=_LOOKUPS)
        self._e_fallback = 1.0
        self._n_fallback = 0.0
        self._rounds: deque[tuple[int, float]] = deque(maxlen=_WINDOW)
        self._scale = 1.0

    def restart(self) -> None:
        """Another plan: what depends on the plan is counted afresh."""
        self.lookups = self.drafted = 0
        self.restart_speed()

    def restart_speed(self) -> None:
        """Another load: speeds that were reached before say nothing about it."""
        self._rounds.clear()

    def round(self, sample: RoundSample, *, is_plain: bool, counts: bool) -> None:
        """One round; ``is_plain``: no draft worked beside it; ``counts``: it went by the plan, for every row."""
        if not sample.decoding_only or not sample.batch:
            return
        seconds = sample.seconds - sample.waited
        if is_plain and sample.tokens == sample.batch:
            self.costs.observe_plain(sample.now, sample.batch, seconds)
        else:
            self.costs.observe_loaded(sample.now, sample.batch, sample.tokens, seconds)
        if counts:
            self._rounds.append((sample.emitted, sample.seconds))

    def row(self, n: int, kept: int, emitted: int, *, drafted: bool) -> None:
        """The outcome of one row that speculates: ``n`` proposed tokens, from a draft or not, ``kept`` of them."""
        if drafted:
            self.drafted += 1
            self.outcomes.observe(n, kept)
            return
        self._e_fallback += _RATE * (emitted - self._e_fallback)
        self._n_fallback += _RATE * (n - self._n_fallback)

    def lookup(self, result: LookupResult, *, n: int, kept: int, rank: int | None, rows: int) -> None:
        """What a lookup found after a proposal of ``n`` tokens, ``kept`` of them, with ``rows`` branches asked for."""
        self.lookups += 1
        if result is LookupResult.HIT:
            self._found.append((True, rows, n))
        elif result is LookupResult.MISS:
            self._found.append((False, rows, n))
        else:
            return
        # A plain step is an empty proposal: it tells of the rank after full acceptance, and of no kept length.
        guesses = max(1, round(rows / (n + 1)))
        self.outcomes.observe_rank(kept == n, rank, guesses)

    @property
    def world(self) -> World:
        """What is believed now."""
        found = self._found
        enough = len(found) >= _ENOUGH_LOOKUPS
        return World(
            costs=self.costs,
            drafting=self.drafting,
            outcomes=self.outcomes,
            rows=round(sum(rows for _, rows, _ in found) / len(found)) if enough else 0,
            k=round(sum(n for *_, n in found) / len(found)) if enough else 0,
            hit_rate=sum(hit for hit, *_ in found) / len(found) if enough else None,
            e_fallback=self._e_fallback,
            n_fallback=self._n_fallback,
            chain_k=self.chain_k,
        )

    def calibrate(self, predicted: float) -> float:
        """Measured in units of predicted speed, of the plan that is followed; drawn to 1 while rounds are few.

        Args:
            predicted: tokens per second of that plan.
        """
        seconds = sum(s for _, s in self._rounds)
        if not self._rounds or seconds <= 0 or predicted <= 0:
            return self._scale
        n = len(self._rounds)
        share = 1.0 if n >= _BELIEVED else n / (n + _SHRINK)
        ratio = sum(tokens for tokens, _ in self._rounds) / seconds / predicted
        self._scale = min(max(1 + share * (ratio - 1), _LEAST_SCALE), _MOST_SCALE)
        return self._scale
