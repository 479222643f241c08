"""What one simulation assumes, validated at the edge."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from ssd_cluster.bench.simulator.times import StepTime
from ssd_cluster.config import FanoutLaw, MissPolicy, Settings
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode

Probability = Annotated[float, Field(ge=0, le=1)]


def _times(value: Any) -> Any:
    return StepTime.parse(str(value)) if isinstance(value, str | float | int) else value


def _acceptances(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(float(part) for part in value.split("/"))
    return (float(value),) if isinstance(value, float | int) else value


def _hit_law(value: Any) -> Any:
    return HitLaw.parse(str(value)) if isinstance(value, str | float | int) else value


Times = Annotated[StepTime, BeforeValidator(_times), PlainSerializer(str)]
Acceptances = Annotated[
    tuple[Probability, ...],
    Field(min_length=1),
    BeforeValidator(_acceptances),
    PlainSerializer(lambda values: "/".join(f"{a:g}" for a in values)),
]


class HitLaw(Settings):
    """Misses of F >= 1 guesses of t*: c F^-r where a proposed token was rejected, c_full F^-r where all were kept.

    r = 0 is a hit rate of 1 - c whatever the number of guesses.
    """

    c: Probability
    c_full: Probability
    r: float = Field(ge=0)

    @classmethod
    def parse(cls, text: str) -> HitLaw:
        """``"C/C_FULL/R"``, or a hit rate that holds for any number of guesses.

        Raises:
            ConfigError: neither of the two.
        """
        try:
            parts = [float(part) for part in text.split("/")]
            if len(parts) == 1:
                return cls.flat(parts[0])
            c, c_full, r = parts
            return cls(c=c, c_full=c_full, r=r)
        except ValueError as error:
            raise ConfigError(f"a law of hits is RATE or C/C_FULL/R, got {text!r}") from error

    def __str__(self) -> str:
        return f"{self.c:g}/{self.c_full:g}/{self.r:g}"

    @classmethod
    def flat(cls, hit_rate: float) -> HitLaw:
        """The same hit rate however many guesses there are."""
        return cls(c=1 - hit_rate, c_full=1 - hit_rate, r=0)


Hits = Annotated[HitLaw, BeforeValidator(_hit_law), PlainSerializer(str)]
PAPER_GREEDY = HitLaw(c=0.67, c_full=0.67, r=0.57)
PAPER_GREEDY_BACKUP = HitLaw(c=0.37, c_full=0.37, r=0.71)


class SimulationSettings(Settings):
    """One deployment in its steady state: every sequence decodes all the time.

    Times: ``verify_ms`` of one target forward by its tokens, ``step_ms`` of one draft forward by its rows,
    ``overhead_ms`` of a target's round outside of the forward, ``one_way_ms`` and ``mbit_s`` of the link.
    ``acceptance``: of proposed tokens, by position (``a/b/c``: the last one holds from there on).
    ``hits``: law of t* after a proposal from the cache, ``hits_after_backup`` after any other; the defaults are fitted
    to the greedy miss rates of the SSD paper, F = 2 to 16.
    ``fallback_tokens``: length of the local proposal of a row that does not wait, kept by ``fallback_acceptance``.
    ``chain_k``: most tokens of a just-in-time chain, None: ``k``.
    ``max_step_rows``, ``row_credit``: as in a draft's settings.
    ``warm_up``, ``rounds``: rounds of each target before and while it is measured.
    """

    mode: Mode = Mode.SSD
    targets: int = Field(default=1, ge=1, le=100_000)
    drafts: int = Field(default=1, ge=1, le=100_000)
    batch: int = Field(default=1, ge=1, le=4096)
    k: int = Field(default=5, ge=1, le=64)
    rows: int = Field(default=16, ge=1, le=256)
    fanout: FanoutLaw = FanoutLaw.MEASURED
    miss_policy: MissPolicy = MissPolicy.RULE
    wait_ms: float = Field(default=100.0, gt=0)
    chain_k: int | None = Field(default=None, ge=1, le=64)
    verify_ms: Times
    step_ms: Times
    overhead_ms: float = Field(default=0.0, ge=0)
    one_way_ms: float = Field(default=0.0, ge=0)
    mbit_s: float | None = Field(default=None, gt=0)
    acceptance: Acceptances = (0.7,)
    hits: Hits = PAPER_GREEDY
    hits_after_backup: Hits = PAPER_GREEDY_BACKUP
    fallback_tokens: int = Field(default=0, ge=0, le=64)
    fallback_acceptance: Probability = 0.0
    max_step_rows: int = Field(default=64, ge=1)
    row_credit: int = Field(default=256, ge=1)
    warm_up: int = Field(default=100, ge=0)
    rounds: int = Field(default=1000, ge=1)
    seed: int = 0
