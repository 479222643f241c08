"""Figures of ``bench pool``: medians with their range over the repetitions, as tables, verdicts and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.contest.results import shown, spread
from ssd_cluster.bench.pool.cells import SMALL, Cell
from ssd_cluster.bench.pool.measuring import repetition_key
from ssd_cluster.bench.store import Record, Store
from ssd_cluster.bench.summary import Spread

FALL = 0.1
"""A draft carries sequences, and is shared well, while hit rates fall by less than this share."""


Figure = Callable[[Record], float | None]


@dataclass(frozen=True, slots=True)
class Measured:
    """A cell and its records."""

    cell: Cell
    records: tuple[Record, ...]

    def spread(self, figure: Figure) -> Spread | None:
        """A figure over the repetitions; None where no repetition has it."""
        values = [value for record in self.records if (value := figure(record)) is not None]
        return spread(values) if values else None

    def of(self, name: str, figure: Callable[[Sequence[Record]], float | None]) -> Spread | None:
        """A figure of the targets of this name only."""
        return self.spread(lambda record: figure([t for t in record["targets"] if t["name"] == name]))


def collect(cells: Sequence[Cell], repetitions: int, store: Store) -> list[Measured]:
    """Cells with their records."""
    return [Measured(cell, tuple(store.all([repetition_key(cell, r) for r in range(repetitions)]))) for cell in cells]


# --- figures of one record's targets


def speed(targets: Sequence[Record]) -> float:
    """Tokens per second and sequence."""
    return float(sum(t["tokens"] / t["seconds"] for t in targets) / sum(t["batch"] for t in targets))


def slowest(targets: Sequence[Record]) -> float:
    """Tokens per second and sequence of the target that has least of them."""
    return float(min(t["tokens"] / t["seconds"] / t["batch"] for t in targets))


def hits_per_round(targets: Sequence[Record]) -> float | None:
    """Hits by all rounds of sequences, those without a session or a block included."""
    rounds = sum(t["rounds"] for t in targets)
    return sum(t["lookups"]["hit"] for t in targets) / rounds if rounds else None


def hit_rate(targets: Sequence[Record]) -> float | None:
    """Hits by lookups, as in /metrics."""
    return _share(targets, "hit")


def late(targets: Sequence[Record]) -> float | None:
    """Lookups for which no block of their round had come (late and stale ones), by all of them."""
    return _share(targets, "late", "stale")


def _share(targets: Sequence[Record], *results: str) -> float | None:
    lookups = sum(sum(t["lookups"].values()) for t in targets)
    return sum(t["lookups"][result] for t in targets for result in results) / lookups if lookups else None


def tokens_per_round(targets: Sequence[Record]) -> float | None:
    rounds = sum(t["rounds"] for t in targets)
    return sum(t["tokens"] for t in targets) / rounds if rounds else None


def _all(figure: Callable[[Sequence[Record]], float | None]) -> Figure:
    return lambda record: figure(record["targets"])


def _of_draft(name: str) -> Figure:
    return lambda record: record["draft"][name] if record["draft"] is not None else None


def _mean_of_targets(name: str) -> Figure:
    return lambda record: sum(t[name] for t in record["targets"]) / len(record["targets"])


COLUMNS: dict[str, tuple[Figure, str]] = {
    "tokens/s per sequence": (_all(speed), "{:.1f}"),
    "slowest target": (_all(slowest), "{:.1f}"),
    "hits per round": (_all(hits_per_round), "{:.3f}"),
    "hit rate": (_all(hit_rate), "{:.3f}"),
    "late": (_all(late), "{:.3f}"),
    "tokens/round": (_all(tokens_per_round), "{:.2f}"),
    "round ms": (_mean_of_targets("round_ms"), "{:.1f}"),
    "overhead ms": (_mean_of_targets("overhead_ms"), "{:.2f}"),
    "targets' CPU": (lambda record: record["targets_cpu"], "{:.2f}"),
    "draft busy": (_of_draft("busy"), "{:.2f}"),
    "rows/step": (_of_draft("rows_per_step"), "{:.1f}"),
    "step ms": (_of_draft("step_ms"), "{:.1f}"),
    "refused": (_of_draft("refused"), "{:.0f}"),
}


def table(measured: Sequence[Measured], names: Sequence[str], first: str) -> str:
    """One line per cell."""
    rows: list[Sequence[str]] = [(first, *names)]
    for one in measured:
        cells = [one.cell.name]
        for name in names:
            figure, form = COLUMNS[name]
            cells.append(shown(one.spread(figure), form))
        rows.append(cells)
    return aligned(rows)


def different(measured: Sequence[Measured]) -> tuple[int, int]:
    """Answers that are not the recorded text, and all that ended."""
    targets = [t for one in measured for record in one.records for t in record["targets"]]
    return sum(t["different"] for t in targets), sum(t["finished"] for t in targets)


def as_json(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Every column of every cell."""
    return [
        {
            "figure": one.cell.figure,
            "cell": one.cell.name,
            "sequences": one.cell.sequences,
            "repetitions": len(one.records),
            "small": _json(one.of(SMALL, hits_per_round)),
            "peaks": peaks(one),
            **{name: _json(one.spread(figure)) for name, (figure, _) in COLUMNS.items()},
        }
        for one in measured
    ]


def peaks(measured: Measured) -> dict[str, int]:
    """The longest that the draft's queues were in any repetition."""
    found: dict[str, int] = {}
    for record in measured.records:
        for name, value in (record["draft"] or {"peaks": {}})["peaks"].items():
            found[name] = max(found.get(name, 0), value)
    return found


def _json(found: Spread | None) -> dict[str, float] | None:
    return asdict(found) if found is not None else None
