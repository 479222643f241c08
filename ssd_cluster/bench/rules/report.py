"""Block efficiency per rule, temperature and lookahead, in the shape of the HSD paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ssd_cluster.bench.clusters import Counts, Estimate, difference, ratio
from ssd_cluster.bench.columns import aligned
from ssd_cluster.bench.rules.plan import Cell, Prompt
from ssd_cluster.bench.rules.rounds import RULES
from ssd_cluster.bench.store import Store

REFERENCE = "token"

_HEADER = (
    "T", "K", "rule", "drafts", "tokens/call [95 %]", "less token-wise [95 %]", "kept/proposed", "calls/round",
    "rule ms", "prompts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CellResult:
    """One row.

    Attributes:
        efficiency: tokens per serial target call, what the target draws itself included.
        against: the same less that of the token-wise rule at equal T and K, on the prompts that both have; None for the
            token-wise rule itself, and where it was not run.
        kept: share of the proposed tokens that were kept; for trees of the depth that could have been.
        calls_per_round: 1, but for rules that need further target calls.
        rule_ms: processors and rule, per round.
    """

    cell: Cell
    efficiency: Estimate
    against: Estimate | None
    kept: float
    calls_per_round: float
    rule_ms: float
    prompts: int

    def as_json(self) -> dict[str, Any]:
        entry = RULES[self.cell.rule]
        return {
            "rule": self.cell.rule,
            "lossless": entry.lossless,
            "temperature": self.cell.terms.temperature,
            "k": self.cell.terms.k,
            "drafts": self.cell.terms.drafts if entry.several else 1,
            "tokens_per_call": self.efficiency.as_json(),
            "less_token_wise": self.against.as_json() if self.against else None,
            "kept_per_proposed": self.kept,
            "calls_per_round": self.calls_per_round,
            "rule_ms": self.rule_ms,
            "prompts": self.prompts,
        }


def summarise(cells: Sequence[Cell], prompts: Sequence[Prompt], store: Store) -> list[CellResult]:
    """Rows of all cells that have records; estimates resample prompts."""
    results = []
    references = {(c.terms.temperature, c.terms.k): c for c in cells if c.rule == REFERENCE}
    for cell in cells:
        records = store.all([cell.key(prompt) for prompt in prompts])
        efficiency = ratio(_counts(records))
        if efficiency is None:
            continue
        reference = references.get((cell.terms.temperature, cell.terms.k))
        rounds = sum(r["rounds"] for r in records)
        kept = sum(j * n for r in records for j, n in enumerate(r["kept_histogram"]))
        results.append(
            CellResult(
                cell,
                efficiency,
                None if reference is None or reference is cell else _against(cell, reference, prompts, store),
                kept / max(1, sum(r["proposed"] for r in records)),
                sum(r["calls"] for r in records) / rounds,
                1e3 * sum(r["rule_s"] for r in records) / rounds,
                len(records),
            )
        )
    return results


def _counts(records: Sequence[dict[str, Any]]) -> Counts:
    return [(r["tokens"], r["calls"]) for r in records]


def _against(cell: Cell, reference: Cell, prompts: Sequence[Prompt], store: Store) -> Estimate | None:
    both = [p for p in prompts if cell.key(p) in store and reference.key(p) in store]
    counts, other = (_counts(store.all([c.key(p) for p in both])) for c in (cell, reference))
    return difference(counts, other)


def table(results: Sequence[CellResult]) -> str:
    """One line per row."""
    rows: list[Sequence[str]] = [_HEADER]
    for r in results:
        entry = RULES[r.cell.rule]
        rows.append(
            (
                f"{r.cell.terms.temperature:g}",
                str(r.cell.terms.k),
                entry.label,
                str(r.cell.terms.drafts if entry.several else 1),
                r.efficiency.text(),
                r.against.text("{:+.3f}") if r.against else "-",
                f"{r.kept:.3f}",
                f"{r.calls_per_round:.2f}",
                f"{r.rule_ms:.2f}",
                str(r.prompts),
            )
        )
    return aligned(rows, left=3)
