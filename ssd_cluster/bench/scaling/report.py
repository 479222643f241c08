"""Tables and the curve of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.scaling.load import StageOutcome
from ssd_cluster.bench.scaling.profile import Stage
from ssd_cluster.bench.scaling.watch import Moment

_HEADER = (
    "streams",
    "s",
    "drafts",
    "sessions",
    "rows of credit",
    "hit rate",
    "answers",
    "tokens/s",
    "different",
    "failed",
)


@dataclass(frozen=True, slots=True)
class StageResult:
    """One stage: what was asked, seen and got, from ``began_s`` to ``ended_s`` of the run."""

    stage: Stage
    outcome: StageOutcome
    moments: tuple[Moment, ...]
    began_s: float
    ended_s: float

    @property
    def drafts(self) -> tuple[int, int]:
        """Fewest and most serving replicas."""
        counts = [one.drafts for one in self.moments] or [0]
        return min(counts), max(counts)

    @property
    def hit_rate(self) -> float | None:
        """Of the lookups within the stage."""
        if len(self.moments) < 2:
            return None
        hits = self.moments[-1].hits - self.moments[0].hits
        lookups = self.moments[-1].lookups - self.moments[0].lookups
        return hits / lookups if lookups > 0 else None  # a target that went took its count along

    @property
    def tokens_per_s(self) -> float:
        return self.outcome.tokens / (self.ended_s - self.began_s)


def table(results: Sequence[StageResult]) -> str:
    """One line per stage."""
    rows: list[Sequence[str]] = [_HEADER]
    for one in results:
        low, high = one.drafts
        first, last = (one.moments[0].drafts, one.moments[-1].drafts) if one.moments else (0, 0)
        busiest = max(one.moments, key=lambda moment: moment.sessions, default=None)
        rows.append(
            (
                str(one.stage.streams),
                f"{one.ended_s - one.began_s:.0f}",
                f"{first} -> {last} ({low}-{high})",
                "-" if busiest is None else str(busiest.sessions),
                "-" if busiest is None else f"{busiest.rows}/{busiest.row_credit}",
                "-" if one.hit_rate is None else f"{one.hit_rate:.3f}",
                str(one.outcome.answers),
                f"{one.tokens_per_s:.1f}",
                str(one.outcome.different),
                str(len(one.outcome.failures)),
            )
        )
    return aligned(rows, left=0)


def as_json(results: Sequence[StageResult]) -> list[dict[str, Any]]:
    """Everything, the moments included."""
    return [
        {
            "streams": one.stage.streams,
            "began_s": one.began_s,
            "ended_s": one.ended_s,
            "drafts": one.drafts,
            "hit_rate": one.hit_rate,
            "tokens_per_s": one.tokens_per_s,
            "answers": one.outcome.answers,
            "tokens": one.outcome.tokens,
            "different": one.outcome.different,
            "failures": one.outcome.failures,
            "moments": [asdict(moment) for moment in one.moments],
        }
        for one in results
    ]


def draw(results: Sequence[StageResult], path: Path) -> None:
    """Streams, sessions and draft replicas over time as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    moments = [moment for one in results for moment in one.moments]
    times = [moment.at_s for moment in moments]
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    load, pool = figure.subplots(2, 1, sharex=True)
    edges = [results[0].began_s, *(one.ended_s for one in results)]
    load.stairs([one.stage.streams for one in results], edges, label="streams", fill=True, alpha=0.3)
    load.plot(times, [moment.sessions for moment in moments], drawstyle="steps-post", label="sessions on drafts")
    pool.plot(times, [moment.drafts for moment in moments], drawstyle="steps-post", label="draft replicas serving")
    going = [moment.drafts + moment.going for moment in moments]
    pool.plot(times, going, drawstyle="steps-post", linestyle=":", label="and draining")
    pool.set(xlabel="s", ylim=(0, max([*going, 1]) + 0.5))
    load.set_ylim(bottom=0)
    for panel in (load, pool):
        panel.legend(loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
