"""What forwards and messages cost in the model."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from pydantic import field_validator

from ssd_cluster.config import Settings
from ssd_cluster.errors import ConfigError

COMMIT_BYTES = 50
BRANCH_BYTES = 8
TOKEN_BYTES = 4


class StepTime(Settings):
    """Milliseconds of one forward by its tokens: T_v of a target (last tokens and proposals), t(rows) of a draft.

    ``points``: (tokens, milliseconds), at least one; linear between them, constant below the first, and on along the
    last slope (flat after a single point).
    """

    points: tuple[tuple[float, float], ...]

    @field_validator("points")
    @classmethod
    def _increasing(cls, points: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        if not points:
            raise ValueError("at least one time is needed")
        tokens = [n for n, _ in points]
        if tokens[0] < 1 or any(b <= a for a, b in pairwise(tokens)):
            raise ValueError("token counts must be at least 1 and rise from point to point")
        if any(not 0 <= ms < 1e7 for _, ms in points):
            raise ValueError("times must be milliseconds of at least 0")
        return points

    @classmethod
    def parse(cls, text: str) -> StepTime:
        """``"18.3"`` (whatever the size) or ``"1:18.3/8:18.6/128:24"``.

        Raises:
            ConfigError: neither of the two.
        """
        try:
            if ":" not in text:
                return cls(points=((1, float(text)),))
            pairs = [part.split(":") for part in text.split("/")]
            return cls(points=tuple((float(n), float(ms)) for n, ms in pairs))
        except ValueError as error:
            raise ConfigError(f"times are MS or TOKENS:MS/TOKENS:MS/... with rising counts, got {text!r}") from error

    def seconds(self, tokens: float) -> float:
        """Time of a forward over ``tokens`` tokens."""
        points = self.points
        at = bisect_left(points, (tokens, 0.0))
        if at < len(points) and points[at][0] == tokens:
            return points[at][1] / 1e3
        if at == 0 or len(points) == 1:
            return points[0][1] / 1e3
        (n0, t0), (n1, t1) = points[at - 1 : at + 1] if at < len(points) else points[-2:]
        return max(0.0, t0 + (t1 - t0) * (tokens - n0) / (n1 - n0)) / 1e3

    def __str__(self) -> str:
        return "/".join(f"{n:g}:{ms:g}" for n, ms in self.points) if len(self.points) > 1 else f"{self.points[0][1]:g}"


class LinkTime(Settings):
    """One direction of the link between a target and a draft.

    ``one_way_ms``: latency. ``mbit_s``: bandwidth; None: unlimited. Messages do not queue behind each other.
    """

    one_way_ms: float = 0.0
    mbit_s: float | None = None

    def seconds(self, size: int) -> float:
        """From sending ``size`` bytes until they are there."""
        return self.one_way_ms / 1e3 + (size * 8e-6 / self.mbit_s if self.mbit_s is not None else 0.0)


def block_bytes(branches: int, tokens: int) -> int:
    """Size of a block of ``branches`` guessed outcomes with ``tokens`` drafted tokens in all."""
    return branches * BRANCH_BYTES + tokens * TOKEN_BYTES
