"""``ssd-cluster simulate``: sweeps, files, and predictions from a bench file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ssd_cluster.bench.simulator.from_bench import base_settings, calibrated, compare, load_bench
from ssd_cluster.bench.simulator.run import simulate
from ssd_cluster.bench.simulator.sweep import settings_of
from ssd_cluster.cli import main
from ssd_cluster.errors import ConfigError
from ssd_cluster.speculation.speed import expected_tokens
from ssd_cluster.types import Mode

GIVEN = ["simulate", "--verify-ms", "20", "--step-ms", "2", "--rounds", "200", "--warm-up", "20"]


def bench_entry(mode: str, speed: float, tokens: float, wait: float, hit_rate: float | None = None) -> dict[str, Any]:
    phases = {"target_forward": 19.0, "verify": 1.0, "draft_wait": wait, "link": 0.5, "other": 0.5}
    return {
        "mode": mode,
        "temperature": 0.0,
        "batch": 1,
        "tokens_per_s": {"median": speed, "min": speed, "max": speed},
        "tokens_per_round": tokens,
        "acceptance": None,
        "hit_rate": hit_rate,
        "round_ms": {**phases, "total": sum(phases.values()), "hit_path": 1.0},
    }


@pytest.fixture
def bench_file(tmp_path: Path) -> Path:
    """A pair of acceptance .8 whose draft forwards take 2 ms, as bench would describe it."""
    tokens = expected_tokens(0.8, 5)
    config = {"k": 5, "rows": 24, "fanout": "measured", "miss_policy": "always_wait", "wait_ms": 100.0}
    results = [
        bench_entry("ar", 1e3 / 21, 1.0, 0.0),
        bench_entry("sd", tokens * 1e3 / 30, tokens, 9.0),
        bench_entry("ssd", tokens * 1e3 / (0.8 * 21 + 0.2 * 30), tokens, 1.8, 0.8),
    ]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"config": config, "results": results}))
    return path


def test_other_cores_are_left_out_and_sd_may_have_a_k_of_its_own(bench_file: Path) -> None:
    content = json.loads(bench_file.read_text())
    wide = bench_entry("ar", 500.0, 1.0, 0.0) | {"name": "ar on 0,1"}
    content["results"].append(wide)
    bench_file.write_text(json.dumps(content))
    config, (measured,) = load_bench(bench_file)
    assert measured.modes[Mode.AR]["tokens_per_s"]["median"] < 500
    settings = base_settings(config, measured, Mode.SSD)
    assert (settings["k"], settings["step_ms"]) == (5, "2")
    other = base_settings(config | {"sd_k": 4}, measured, Mode.SSD)
    assert (other["k"], other["step_ms"]) == (5, "2.5"), "drafting time and tokens are those of sd's four"
    assert other["acceptance"] > settings["acceptance"]
    assert base_settings(config | {"sd_k": 4}, measured, Mode.SD)["k"] == 4
    assert base_settings(config | {"chain_k": 3}, measured, Mode.SSD)["chain_k"] == 3
    assert base_settings(config | {"chain_k": 3}, measured, Mode.SD)["chain_k"] is None


def test_sweeps_give_a_table_json_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "s.json"), "--plot", str(tmp_path / "s.png")]
    assert main([*GIVEN, "--sweep", "one-way-ms=0,5", "--sweep", "k=2,4", "--modes", "ar,ssd", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["one_way_ms", "k", "mode"]
    assert [line.split()[:3] for line in lines[2:]] == [
        [ms, k, mode] for ms in ("0", "5") for k in ("2", "4") for mode in ("ar", "ssd")
    ]
    content = json.loads((tmp_path / "s.json").read_text())
    assert content["settings"]["verify_ms"] == "20"
    assert content["points"][0]["parameters"] == {"one_way_ms": "0", "k": "2"}
    assert content["points"][0]["result"]["tokens_per_s"] == pytest.approx(50)
    assert (tmp_path / "s.png").read_bytes()[1:4] == b"PNG"


def test_without_a_sweep_there_is_one_line_per_mode_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*GIVEN, "--capacity", "--plot", str(tmp_path / "m.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["ar", "sd", "ssd"]
    assert lines[0].endswith("sequences/draft")
    assert int(lines[-1].split()[-1]) >= 1
    assert (tmp_path / "m.png").stat().st_size > 1000


def test_presets_compare_with_what_was_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--preset", "paper-qwen-32b", "--rounds", "2000", "--within", "10"]) == 0
    out = capsys.readouterr().out
    assert "ssd/sd       1.49" in out
    assert main(["simulate", "--preset", "paper-qwen-32b", "--rounds", "500", "--within", "0.01"]) == 1


def test_bench_is_predicted_from_its_own_times(bench_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = bench_file.with_name("compared.json")
    assert main(["simulate", "--from", str(bench_file), "--within", "5", "--json", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["mode", "T"]
    entries = json.loads(out.read_text())["comparison"]
    assert [entry["mode"] for entry in entries] == ["ar", "sd", "ssd"]
    assert all(abs(entry["error"]) < 0.05 for entry in entries)


def test_overrides_change_the_prediction(bench_file: Path) -> None:
    fixed = {"hits": "0.8", "hits_after_backup": "0.8", "rounds": "300"}
    slow = {c.mode: c for c in compare(bench_file, fixed | {"step_ms": "6"})}
    usual = {c.mode: c for c in compare(bench_file, fixed)}
    for mode, comparison in usual.items():
        if mode != "ar":
            assert slow[mode].predicted < 0.9 * comparison.predicted


def test_calibration_finds_the_share_of_right_guesses() -> None:
    settings = {"mode": "ssd", "verify_ms": 20, "step_ms": 3, "rows": 24, "k": 5, "acceptance": 0.8}
    share = calibrated(settings, 0.6)
    reached = simulate(settings_of(settings | {"hits": share, "hits_after_backup": share, "rounds": 3000})).hit_rate
    assert reached == pytest.approx(0.6, abs=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sweep", "speed=1"], "--sweep takes"),
        (["--sweep", "k="], "--sweep takes"),
        (["--sweep", "k=1", "--sweep", "k=2"], "at most once"),
        (["--sweep", "k=1,99"], "--k"),
        (["--acceptance", "1.5"], "--acceptance"),
        (["--hits", "a/b"], "a law of hits"),
        (["--fanout", "best"], "--fanout"),
        (["--preset", "mine"], "--preset is one of"),
        (["--within", "5"], "--within compares"),
        (["--from", "nowhere.json"], "no JSON file of ssd-cluster bench"),
        (["--from", "x.json", "--capacity"], "does not go with --from"),
    ],
)
def test_wrong_options_are_refused(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GIVEN, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_bench_file_without_sd_says_what_is_missing(bench_file: Path) -> None:
    content = json.loads(bench_file.read_text())
    content["results"] = [entry for entry in content["results"] if entry["mode"] != "sd"]
    bench_file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="no mode sd"):
        compare(bench_file, {})
