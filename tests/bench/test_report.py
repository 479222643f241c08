"""The table and the JSON file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssd_cluster.bench.handle import PlannedRounds
from ssd_cluster.bench.report import as_json, table, write_json
from ssd_cluster.bench.summary import ModeResult, Spread
from ssd_cluster.types import Mode

PHASES = {
    "target_forward": 20.0, "noise": 0.1, "process": 1.35, "verify": 0.9,
    "draft_wait": 0.5, "link": 0.25, "other": 0.75, "total": 23.85,
}  # fmt: skip


def result(mode: Mode, speed: float, temperature: float = 0.0, **more: object) -> ModeResult:
    values: dict = {
        "tokens_per_round": 2.5,
        "acceptance": 0.6,
        "hit_rate": 0.8,
        "round_ms": {**PHASES, "hit_path": 1.25},
    } | more
    return ModeResult(mode, temperature, 1, Spread(speed, speed - 1, speed + 1), **values)


@pytest.fixture
def results() -> list[ModeResult]:
    plain = result(Mode.AR, 20.0, tokens_per_round=1.0, acceptance=None, hit_rate=None)
    return [plain, result(Mode.SSD, 50.0), result(Mode.SSD, 30.0, temperature=0.7)]


def test_json_has_the_documented_shape(results: list[ModeResult], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    write_json(out, {"k": 5}, results)
    assert list(tmp_path.iterdir()) == [out], "nothing half-made is left"
    read = json.loads(out.read_text())
    assert read == as_json({"k": 5}, results)
    assert set(read) == {"config", "results"}
    assert read["config"] == {"k": 5}
    for entry in read["results"]:
        assert list(entry) == [
            "mode", "name", "temperature", "batch", "tokens_per_s", "per_user", "tokens_per_round", "acceptance",
            "hit_rate", "round_ms", "hit_round_ms", "plans",
        ]  # fmt: skip
        assert set(entry["tokens_per_s"]) == {"median", "min", "max"}
    assert read["results"][0]["mode"] == read["results"][0]["name"] == "ar"
    assert read["results"][0]["hit_rate"] is None
    assert read["results"][1]["tokens_per_s"] == {"median": 50.0, "min": 49.0, "max": 51.0}
    assert read["results"][1]["round_ms"]["hit_path"] == 1.25


def test_table_lines_up_and_compares_with_plain_decoding_of_the_same_work(results: list[ModeResult]) -> None:
    lines = table(results).splitlines()
    assert len(lines) == 2 + len(results)
    assert len({len(line) for line in lines}) == 1
    assert "50.0 (49.0-51.0)" in lines[3]
    assert "2.50x" in lines[3]
    assert "x" not in lines[4], "no plain run at this temperature"
    column = lines[0].index("hit rate") + len("hit rate") - 1
    assert lines[2][column] == "-"
    assert lines[3][column - 4 : column + 1] == "0.800"
    for figure in ("23.85", "20.00", "0.10", "1.35", "0.90", "3.77", "0.50", "0.25", "0.75", "1.25"):
        assert figure in lines[3]


def test_what_controllers_planned_is_a_column_of_its_own(results: list[ModeResult]) -> None:
    assert "plan" not in table(results)
    plans = (PlannedRounds(k=5, rows=16, wait=True, rounds=90), PlannedRounds(k=0, rows=0, wait=False, rounds=30))
    lines = table([*results, result(Mode.SSD, 40.0, plans=plans), result(Mode.SSD, 40.0, plans=plans[1:])]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[3].endswith(" -")
    assert lines[5].endswith("  k5 r16 wait (75 %)")
    assert lines[6].endswith("  plain (100 %)")
