"""Figures and what is said of them, from records made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_cluster.bench.pool.cells import Cell, capacity, latency, overload, sharing
from ssd_cluster.bench.pool.clients import Client
from ssd_cluster.bench.pool.measuring import repetition_key
from ssd_cluster.bench.pool.tables import COLUMNS, Measured, collect, different, late, peaks, table
from ssd_cluster.bench.pool.verdicts import as_json, carried, of_capacity, of_latency, of_overload, of_sharing
from ssd_cluster.bench.store import Store
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode


def record(cell: Cell, tokens: float = 100.0, hits: int = 70, late: int = 0, **peak: int) -> dict[str, Any]:
    """Every sequence emitted ``tokens`` in 10 s and 100 rounds, ``hits`` of which hit."""
    targets = [
        {
            "name": plan.name, "batch": plan.batch, "tokens": tokens * plan.batch, "rounds": 100 * plan.batch,
            "lookups": {"hit": hits * plan.batch, "miss": (90 - hits - late) * plan.batch, "late": late * plan.batch,
                        "stale": 0},
            "finished": 3, "different": 0, "seconds": 10.0, "round_ms": 40.0, "overhead_ms": 1.0,
        }
        for plan in cell.plans
    ]  # fmt: skip
    draft = {
        "busy": 0.5,
        "rows_per_step": 20.0,
        "step_ms": 8.0,
        "refused": 2.0,
        "lateness": 0.1,
        "sessions": 1,
        "peaks": peak,
    }
    return {"targets": targets, "targets_cpu": 0.25, "draft": draft if cell.linked else None}


def measured(cells: list[Cell], *speeds: tuple[float, ...], **peak: int) -> list[Measured]:
    """Cells whose sequences emitted so many tokens, repetition by repetition."""
    pairs = zip(cells, speeds, strict=True)
    return [Measured(cell, tuple(record(cell, one, **peak) for one in given)) for cell, given in pairs]


def test_capacity_ends_where_hits_fall() -> None:
    cells = capacity([4, 1, 2, 8], 1)
    assert [cell.sequences for cell in cells] == [1, 2, 4, 8]
    by_hits = [Measured(c, (record(c, hits=h),)) for c, h in zip(cells, (70, 68, 63, 80), strict=True)]
    assert carried(by_hits) == (8, False), "63 is exactly a tenth less"
    by_hits[2] = Measured(cells[2], (record(cells[2], hits=62),))
    assert carried(by_hits) == (2, True), "what comes after the fall does not count"
    assert "carried 2 sequences" in of_capacity(by_hits)[0]
    assert as_json("capacity", by_hits) == {"carried": 2, "more_did_not_hold": True}
    none = [Measured(c, (record(c, hits=0),)) for c in cells]
    assert carried(none) is None
    assert of_capacity(none) == ["there were no hits to compare with"]
    assert [len(cell.plans) for cell in capacity([2, 8], 2)] == [1, 4]
    with pytest.raises(ConfigError, match="no multiple"):
        capacity([3], 2)


def test_sharing_looks_at_the_small_target_only() -> None:
    alone, beside = sharing(16)
    mixed = record(beside, hits=66)
    mixed["targets"][1]["lookups"]["hit"] = 0
    said = of_sharing([Measured(alone, (record(alone),)), Measured(beside, (mixed,))])
    assert "fell by 5.7 %" in said[-1]
    assert "holds" in said[-1]
    said = of_sharing([Measured(alone, (record(alone),)), Measured(beside, (record(beside, hits=50),))])
    assert "does not hold" in said[-1]


def test_overload_is_judged_by_the_slowest_target_and_shows_queues() -> None:
    cells = overload(2, 4)
    assert [cell.linked for cell in cells] == [False, False, True, True, True]
    assert {plan.mode for plan in cells[0].plans} == {Mode.AR}
    assert {plan.client for plan in cells[4].plans} == {Client.GREEDY}
    assert len({cell.draft for cell in cells[2:]}) == 3, "queues of one cell are not those of another"
    queues = {"messages": 7, "rows": 40, "sessions": 8, "unsent": 0}
    good = measured(cells, (100, 110), (120, 121), (200, 210), (130, 131), (99, 106), **queues)
    said = of_overload(good)
    assert "96.4 % of ar" in said[-1], "106 by 110, within the repetition"
    assert "holds" in said[-1]
    assert peaks(good[4]) == queues
    assert peaks(good[0]) == {}
    one_is_slow = record(cells[4], tokens=100)
    one_is_slow["targets"][1]["tokens"] = 94 * 4
    bad = [*good[:4], Measured(cells[4], (one_is_slow, one_is_slow))]
    assert "does not hold" in of_overload(bad)[-1]
    assert as_json("overload", bad)["by ar"]["10x asked for"]["max"] == pytest.approx(0.94)


def test_latency_compares_each_client_with_itself() -> None:
    cells = latency([5, 0, 1], 1)
    names = ["ar", "push 0 ms", "pull 0 ms", "push 1 ms", "pull 1 ms", "push 5 ms", "pull 5 ms"]
    assert [cell.name for cell in cells] == names
    said = of_latency(measured(cells, (100,), (200,), (180,), (192,), (150,), (160,), (90,)))
    assert said[-1] == "push loses 4.0 % at 1 ms (less than 5 % holds)"
    assert "0.833" in said[0], "pull at 1 ms by pull at 0"
    slow = measured(cells, (100,), (200,), (180,), (180,), (150,), (160,), (90,))
    assert "does not hold" in of_latency(slow)[-1]


def test_table_and_store() -> None:
    cells = sharing(2)
    store = Store(None, {})
    for repetition, tokens in enumerate((100.0, 140.0, 120.0)):
        for cell in cells:
            store.add(repetition_key(cell, repetition), record(cell, tokens))
    found = collect(cells, 3, store)
    lines = table(found, list(COLUMNS), "targets").splitlines()
    assert "12.0 (10.0-14.0)" in lines[2]
    assert "0.700 (0.700-0.700)" in lines[2], "hits by rounds"
    assert "0.778 (0.778-0.778)" in lines[3], "hits by lookups"
    assert different(found) == (0, 3 * 3 * 3)
    (target,) = record(cells[0], hits=60, late=10)["targets"]
    target["lookups"] |= {"miss": 15, "stale": 5}
    assert late([target]) == pytest.approx(15 / 90), "an older block is no block of this round"
    assert len(collect(cells, 2, store)[0].records) == 2
