"""Who runs in the next forward: rows are granted to sessions; a session then takes its own rows of highest gain.

Order: just-in-time rows first, by deadline; then glue and tree rows; then prefill. Glue and tree rows of one target go
by earliest deadline, and the targets share what is left by weight, the one that was served least coming first. While
other work runs, prefill gets what the step has left and at least a quarter of it, so that neither starves the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, TypeVar

S = TypeVar("S")

_PREFILL_SHARE = 4
_SERVICE_MEMORY = 0.9


class RowKind(IntEnum):
    """Classes of rows; smaller goes first."""

    JIT = 0
    TREE = 1
    PREFILL = 2


@dataclass(frozen=True, slots=True)
class Demand(Generic[S]):
    """What one session could run now.

    Attributes:
        session: handed back in the grant.
        target: whose session it is; fairness is between targets.
        kind: class of the rows.
        rows: most rows that can run in one forward.
        least: fewest rows that make sense (a glue span is not split).
        deadline_s: when the result is wanted, clock seconds; earliest first.
        late: the deadline has passed and a block is out: what follows is worth less than a first block elsewhere.
    """

    session: S
    target: str
    kind: RowKind
    rows: int
    least: int = 1
    deadline_s: float = 0.0
    late: bool = False

    @property
    def urgency(self) -> tuple[bool, float]:
        return self.late, self.deadline_s


class Scheduler:
    """Grants the rows of one forward.

    Args:
        max_step_rows: most rows of a forward that has anything but prefill in it.
        prefill_chunk: most tokens of a forward that is all prefill.
        weights: share of a target relative to others, by its name or its id; 1 where neither is in it.
    """

    def __init__(self, max_step_rows: int, prefill_chunk: int, weights: Mapping[str, float] | None = None) -> None:
        self._max_rows = max_step_rows
        self._chunk = prefill_chunk
        self.weights = dict(weights or {})
        self._served: dict[str, float] = {}

    def weight(self, target: str) -> float:
        """Relative share of a target."""
        name = target.rpartition("-")[0]  # replicas of one target have its name and a suffix of their own
        return self.weights.get(target, self.weights.get(name, 1.0))

    def grant(self, demands: Iterable[Demand[S]]) -> list[tuple[Demand[S], int]]:
        """(demand, rows) of the next forward; empty only if nothing is demanded."""
        kinds: dict[RowKind, list[Demand[S]]] = {kind: [] for kind in RowKind}
        for demand in demands:
            kinds[demand.kind].append(demand)
        grants: list[tuple[Demand[S], int]] = []
        left = self._max_rows
        for demand in sorted(kinds[RowKind.JIT], key=lambda d: d.urgency):
            rows = min(demand.rows, left)
            if rows >= demand.least or not grants:
                rows = max(rows, demand.least)
                grants.append((demand, rows))
                left = max(0, left - rows)
        reserve = min(self._max_rows // _PREFILL_SHARE, sum(d.rows for d in kinds[RowKind.PREFILL]))
        tree = self._share(kinds[RowKind.TREE], max(0, left - reserve), not grants)
        grants += tree
        left -= sum(rows for _, rows in tree)
        prefill = max(left, reserve) if grants else self._chunk
        return grants + self._share(kinds[RowKind.PREFILL], prefill, not grants)

    def _share(self, demands: Sequence[Demand[S]], budget: int, alone: bool) -> list[tuple[Demand[S], int]]:
        """Split a budget over the targets, then over their sessions; with ``alone`` at least one demand is granted."""
        if not demands:
            return []
        by_target: dict[str, list[Demand[S]]] = {}
        for demand in demands:
            by_target.setdefault(demand.target, []).append(demand)
        wanted = {target: sum(d.rows for d in rows) for target, rows in by_target.items()}
        shares = wanted if sum(wanted.values()) <= budget else self._split(wanted, budget)
        order = sorted(by_target, key=lambda t: min(d.urgency for d in by_target[t]))
        granted: dict[int, tuple[Demand[S], int]] = {}
        # First what fits the shares, so that a span that does not is never granted out of another target's share.
        for within in (True, False):
            for target in order:
                for demand in sorted(by_target[target], key=lambda d: d.urgency):
                    if id(demand) in granted or not shares[target]:
                        continue
                    rows = min(demand.rows, shares[target], budget)
                    if rows < demand.least:
                        rows = 0 if within or demand.least > budget else demand.least
                    if rows:
                        granted[id(demand)] = demand, rows
                        shares[target], budget = max(0, shares[target] - rows), budget - rows
        if not granted and alone:
            first = min(demands, key=lambda d: d.urgency)
            return [(first, max(first.least, min(first.rows, budget)))]
        return list(granted.values())

    def _split(self, wanted: Mapping[str, int], budget: int) -> dict[str, int]:
        """Integer shares: rows go one by one to the target with the least weighted service that wants more."""
        service = {target: self._served.get(target, 0.0) for target in wanted}
        shares = dict.fromkeys(wanted, 0)
        for _ in range(budget):
            open_targets = [target for target in wanted if shares[target] < wanted[target]]
            if not open_targets:
                break
            target = min(open_targets, key=lambda t: service[t])
            shares[target] += 1
            service[target] += 1.0 / self.weight(target)
        self._served = {target: value * _SERVICE_MEMORY for target, value in service.items()}
        return shares
