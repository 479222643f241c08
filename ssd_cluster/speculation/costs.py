"""What a round of the target costs, learnt on line: T_v(B, N) for B rows and N tokens (speculation.md section 8).

Two sets are kept apart. *Plain* rounds are those the target runs with no draft at work: they are what speculation has
to beat. *Loaded* rounds are all others; they may be slower at equal size, since target and draft can share a memory
bus. Every size keeps its newest samples and counts by their median, so that a round that was disturbed counts little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

_SAMPLES = 9
_ENOUGH = 3
_NEAR = 0.26
_MOST_SIZES = 64
_PRIOR_SLOPE = 0.015
_PRIOR_WEIGHT = 0.3
_TRUSTED = 4.0


class _Window:
    """The newest durations of one size."""

    __slots__ = ("_median", "newest", "seconds")

    def __init__(self) -> None:
        self.seconds: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        self.newest = 0.0
        self._median: float | None = None

    def __len__(self) -> int:
        return len(self.seconds)

    def add(self, now: float, seconds: float) -> None:
        self.seconds.append((now, seconds))
        self.newest = now
        self._median = None

    @property
    def median(self) -> float:
        if self._median is None:
            self._median = median(seconds for _, seconds in self.seconds)
        return self._median

    def fresh(self, since: float) -> int:
        """Samples that are no older than ``since``."""
        return sum(at >= since for at, _ in self.seconds)


class RoundCosts:
    """Durations of decoding rounds, in seconds of any clock; waiting for drafts is not part of them.

    Args:
        memory_s: a loaded size that was not seen for this long is forgotten.
    """

    def __init__(self, memory_s: float = 60.0) -> None:
        self._memory_s = memory_s
        self._plain: dict[int, _Window] = {}
        self._loaded: dict[tuple[int, int], _Window] = {}

    def observe_plain(self, now: float, batch: int, seconds: float) -> None:
        """A round of ``batch`` rows and as many tokens, with no draft at work."""
        self._plain.setdefault(batch, _Window()).add(now, seconds)

    def observe_loaded(self, now: float, batch: int, tokens: int, seconds: float) -> None:
        """A round of ``batch`` rows and ``tokens`` tokens in all, proposals included."""
        self._loaded.setdefault((batch, tokens), _Window()).add(now, seconds)
        if len(self._loaded) > _MOST_SIZES:
            del self._loaded[min(self._loaded, key=lambda size: self._loaded[size].newest)]

    def forget(self, now: float) -> None:
        """Drop loaded sizes that are too old to believe."""
        since = now - self._memory_s
        self._loaded = {size: window for size, window in self._loaded.items() if window.newest >= since}

    def plain_known(self, batch: int, since: float) -> bool:
        """Whether a batch of about this size has run plain rounds enough since then."""
        near = [window for size, window in self._plain.items() if abs(size - batch) <= _NEAR * batch]
        return sum(window.fresh(since) for window in near) >= _ENOUGH

    def loaded_known(self, batch: int) -> bool:
        """Whether rounds with proposals were seen often enough for a batch of about this size."""
        near = (len(w) for (size, n), w in self._loaded.items() if n > size and abs(size - batch) <= _NEAR * batch)
        return sum(near) >= _ENOUGH

    def plain(self, batch: int) -> float | None:
        """T_v(B, B): a plain round of ``batch`` rows; None before any was seen.

        Between and beyond measured batches: linear through the nearest two, or the prior slope from the only one.
        """
        if not self._plain:
            return None
        window = self._plain.get(batch)
        if window is not None and len(window) >= _ENOUGH:
            return window.median
        trusted = [size for size, w in self._plain.items() if len(w) >= _ENOUGH] or list(self._plain)
        near = sorted(trusted, key=lambda size: abs(size - batch))[:2]
        first = self._plain[near[0]].median
        if len(near) < 2:
            return first * max(0.5, 1 + _PRIOR_SLOPE * (batch - near[0]))
        slope = max(0.0, (self._plain[near[1]].median - first) / (near[1] - near[0]))
        return max(first + slope * (batch - near[0]), first / 2)

    def loaded(self, batch: int, tokens: float) -> float:
        """T_v(B, N): a round of ``batch`` rows and ``tokens`` tokens while drafts work.

        Locally weighted least squares over the sizes that were seen, of cost in plain rounds against extra tokens; a
        weak prior says that an extra token costs 1.5 % of a plain round of one row.

        Raises:
            ValueError: no plain round was seen yet.
        """
        plain = self.plain(batch)
        if plain is None:
            raise ValueError("no plain round was seen yet")
        extra = max(0.0, tokens - batch)
        relative = self._relative(batch, extra, (self.plain(1) or plain) * _PRIOR_SLOPE / plain)
        exact = self._loaded.get((batch, round(tokens))) if abs(tokens - round(tokens)) < 1e-6 else None
        if exact is not None:
            share = len(exact) / (len(exact) + _TRUSTED)
            relative = share * exact.median / plain + (1 - share) * relative
        return plain * max(relative, 0.5)

    def _relative(self, batch: int, extra: float, slope: float) -> float:
        """Cost of a round with ``extra`` tokens beyond one per row, in plain rounds."""
        reach = 1 + extra / 2
        points = [(0.0, 1.0, _PRIOR_WEIGHT), (extra + 1, 1 + slope * (extra + 1), _PRIOR_WEIGHT)]
        plain: dict[int, float] = {}
        for (size, n), window in self._loaded.items():
            base = plain.get(size) or self.plain(size)
            if base is None:
                continue
            plain[size] = base
            x, alike = n - size, 1 / (1 + abs(size - batch) / 2)
            distance = (x - extra) / reach
            points.append((x, window.median / base, len(window) * alike / (1 + 2 * distance * distance)))
        return _line(points, extra)


def _line(points: Iterable[tuple[float, float, float]], at: float) -> float:
    """Weighted least squares line through (x, y, weight), never falling, taken at ``at``."""
    total = sum_x = sum_y = sum_xx = sum_xy = 0.0
    for x, y, w in points:
        x -= at
        total += w
        sum_x += w * x
        sum_y += w * y
        sum_xx += w * x * x
        sum_xy += w * x * y
    spread = sum_xx - sum_x * sum_x / total
    slope = max(0.0, (sum_xy - sum_x * sum_y / total) / spread) if spread > 0 else 0.0
    return (sum_y - slope * sum_x) / total
