"""What a draft costs as its target sees it: step times it has told, corrected by when its blocks really come."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

_SAMPLES = 24
_LEAST, _MOST = 0.1, 50.0


class _Ratios:
    """The median of the newest ratios of measured and predicted times; None before the first."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_SAMPLES)
        self._median: float | None = None

    def add(self, ratio: float) -> None:
        self._values.append(min(max(ratio, _LEAST), _MOST))
        self._median = None

    @property
    def median(self) -> float | None:
        if self._median is None and self._values:
            self._median = median(self._values)
        return self._median


class DraftTimes:
    """t(rows), the link, and what became of predictions made from them. Seconds of any clock.

    A draft says its step time once, at Welcome, for a draft with nothing else to do. What it needs in fact, other
    targets included, shows in the time from a commit to the block for it: the ratio to the prediction scales all step
    times. The shortest round trip of an Open is taken for twice the one-way latency.
    """

    def __init__(self) -> None:
        self.base_s = 0.0
        self.per_row_s = 0.0
        self._trips: deque[float] = deque(maxlen=_SAMPLES)
        self._ratios = _Ratios()
        self._waits = _Ratios()

    def told(self, base_s: float, per_row_s: float) -> None:
        """The step time of the draft that is used: ``base_s + per_row_s * rows``."""
        self.base_s = base_s
        self.per_row_s = per_row_s

    def observe_trip(self, seconds: float) -> None:
        """From an Open to its Opened."""
        self._trips.append(max(0.0, seconds))

    def observe_block(self, seconds: float, *, proposed: int, rows: int, depth: int, sessions: int) -> None:
        """A block came ``seconds`` after the commit that asked for it.

        Args:
            seconds: since the commit.
            proposed: tokens of the proposal it guesses the outcome of.
            rows: branches.
            depth: tokens behind the deepest of them.
            sessions: of this target on the draft, whose rows are run together.
        """
        compute = self._step(sessions * (proposed + 1)) + max(1, depth) * self._step(sessions * max(1, rows))
        if compute > 0:
            self._ratios.add((seconds - self.round_trip_s) / compute)

    def observe_late(self, seconds: float, *, proposed: int, rows: int, sessions: int) -> None:
        """No block has come in so many seconds: the draft is at least that slow, however slow it was before."""
        compute = self._step(sessions * (proposed + 1)) + self._step(sessions * max(1, rows))
        if compute > 0:
            self._ratios.add(max(self.slowness, (seconds - self.round_trip_s) / compute))

    def observe_wait(self, seconds: float, batch: int, k: int) -> None:
        """A wait for just-in-time chains of ``k`` tokens for ``batch`` rows has ended, in time or not."""
        predicted = self._chain(batch, k)
        if predicted > 0:
            self._waits.add(seconds / predicted)

    @property
    def round_trip_s(self) -> float:
        """Twice the one-way latency; 0 before anything was measured."""
        return min(self._trips, default=0.0)

    @property
    def slowness(self) -> float:
        """Measured block times in units of those the draft has told; 1 before the first block."""
        return self._ratios.median if self._ratios.median is not None else 1.0

    def depth(self, batch: int, k: int, rows: int, available_s: float) -> float:
        """Depth that blocks reach in the time of a verification.

        Args:
            batch: sequences that speculate, each with ``rows`` branches behind a proposal of ``k`` tokens.
            k: as above.
            rows: as above.
            available_s: from a commit to the moment at which the next outcome is known.
        """
        left = available_s - self.round_trip_s - self.slowness * self._step(batch * (k + 1))
        step = self.slowness * self._step(batch * rows)
        return left / step if step > 0 else (math.inf if left > 0 else 0.0)

    def wait_s(self, batch: int, k: int) -> float:
        """Time until just-in-time chains of ``k`` tokens for ``batch`` rows are there."""
        factor = self._waits.median if self._waits.median is not None else self.slowness
        return factor * self._chain(batch, k)

    def _chain(self, batch: int, k: int) -> float:
        return self.round_trip_s + self._step(2 * batch) + max(0, k - 1) * self._step(batch)

    def _step(self, rows: int) -> float:
        return self.base_s + self.per_row_s * rows
