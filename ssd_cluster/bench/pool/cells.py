"""What each figure of ``bench pool`` measures: cells of targets on a draft, run in turn, several times over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_cluster.bench.pool.clients import GREED, Client
from ssd_cluster.bench.pool.crowd import Plan
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode

FIGURES = ("capacity", "sharing", "overload", "latency", "sharding")
SMALL, BIG = "small", "big"
ROOMY, SECOND = "roomy", "second"
WITHIN, OBEYED, EXCEEDED = "within credit", "obeyed", "exceeded"
"""Drafts. The last three serve one cell of the overload each, so that the longest their queues have been is of that."""
TIGHT = (OBEYED, EXCEEDED)


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement.

    Attributes:
        figure, name: together its key.
        plans: the targets.
        draft: which draft process serves them.
        second: another one, where targets share their guesses out.
    """

    figure: str
    name: str
    plans: tuple[Plan, ...]
    draft: str = ROOMY
    second: str | None = None

    @property
    def drafts(self) -> tuple[str, ...]:
        """Names of the draft processes that are linked."""
        if not self.linked:
            return ()
        return (self.draft,) if self.second is None else (self.draft, self.second)

    @property
    def key(self) -> str:
        return f"{self.figure}|{self.name}"

    @property
    def sequences(self) -> int:
        return sum(plan.batch for plan in self.plans)

    @property
    def linked(self) -> bool:
        """Whether any of its targets uses the draft."""
        return any(plan.linked and plan.mode is not Mode.AR for plan in self.plans)


def capacity(sequences: Sequence[int], per_target: int) -> list[Cell]:
    """More and more sequences on one draft.

    Raises:
        ConfigError: a number is no multiple of the sequences of a target.
    """
    cells = []
    for n in sorted(set(sequences)):
        if n % per_target:
            raise ConfigError(f"--sequences {n} is no multiple of --per-target {per_target}", param="sequences")
        plans = tuple(Plan(f"target-{i}", per_target) for i in range(n // per_target))
        cells.append(Cell("capacity", str(n), plans))
    return cells


def sharing(big: int) -> list[Cell]:
    """A target with one sequence by itself, and beside one with ``big``."""
    small = Plan(SMALL, 1)
    return [Cell("sharing", "alone", (small,)), Cell("sharing", "beside", (small, Plan(BIG, big)))]


def overload(targets: int, batch: int) -> list[Cell]:
    """Targets that want ten times the rows that the draft grants, beside plain decoding and their local fallback."""

    def crowd(mode: Mode = Mode.SSD, client: Client = Client.PUSH, linked: bool = True) -> tuple[Plan, ...]:
        return tuple(Plan(f"target-{i}", batch, mode, client, linked=linked) for i in range(targets))

    return [
        Cell("overload", "ar", crowd(Mode.AR)),
        Cell("overload", "fallback only", crowd(linked=False)),
        Cell("overload", "within credit", crowd(), WITHIN),
        Cell("overload", f"{GREED}x wanted, credit obeyed", crowd(), OBEYED),
        Cell("overload", f"{GREED}x asked for", crowd(client=Client.GREEDY), EXCEEDED),
    ]


def latency(one_way_ms: Sequence[float], batch: int) -> list[Cell]:
    """Push and pull over a link that takes longer and longer, beside plain decoding."""
    cells = [Cell("latency", "ar", (Plan("target-0", batch, Mode.AR),))]
    for ms in sorted(set(one_way_ms)):
        for client in (Client.PUSH, Client.PULL):
            plan = Plan("target-0", batch, client=client, one_way_ms=ms)
            cells.append(Cell("latency", f"{client.value} {ms:g} ms", (plan,)))
    return cells


def sharding(batch: int, rows: int) -> list[Cell]:
    """One target whose guesses are built by one draft, and by two that share the kept lengths."""

    def cell(name: str, shards: int, rows: int) -> Cell:
        plan = Plan("target-0", batch, shards=shards, rows=rows)
        return Cell("sharding", name, (plan,), second=SECOND if shards > 1 else None)

    half = max(1, rows // 2)
    return [
        cell(f"one draft, {rows} rows", 1, rows),
        cell(f"two drafts, {half} rows each", 2, half),
        cell(f"two drafts, {rows} rows each", 2, rows),
    ]
