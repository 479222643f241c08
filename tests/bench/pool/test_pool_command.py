"""``bench pool`` on a tiny pair as typed: record, replay on a real draft process, go on where it was stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.tiny import make_checkpoint, perturb

from ssd_cluster.cli import main

CORE = str(min(os.sched_getaffinity(0)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target")
    return str(target), str(perturb(target, folder / "draft", noise=0.02))


@pytest.fixture(scope="module")
def outcomes(pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outcomes")
    prompts, file = folder / "prompts.jsonl", folder / "outcomes.json"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("the river", "once upon", "a guess")))
    command = ["bench", "pool", "--record", str(file), "--prompts", str(prompts), "--target", pair[0], "--raw"]
    command += ["--dtype", "float32", "--max-tokens", "24", "--ignore-eos", "--target-cores", CORE]
    assert main([*command, "--temperature", "0", "--limit", "2"]) == 0
    first = json.loads(file.read_text())
    assert len(first["records"]) == 2
    assert main([*command, "--temperature", "0,1"]) == 0
    content = json.loads(file.read_text())
    assert first["records"].items() <= content["records"].items(), "what was there is kept as it was"
    assert len(content["records"]) == 6
    assert all(len(record["output"]) == 24 for record in content["records"].values())
    return file


def replay(outcomes: Path, draft: str, *more: str) -> list[str]:
    command = ["bench", "pool", "--outcomes", str(outcomes), "--draft", draft, "--dtype", "float32", *more]
    command += ["--verify-ms", "20", "--k", "3", "--rows", "6", "--warm-up", "0.2", "--seconds", "0.6"]
    return [*command, "--target-cores", CORE, "--draft-cores", CORE]


def test_all_figures(outcomes: Path, pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "pool.json", tmp_path / "figures" / "pool.png"
    command = replay(outcomes, pair[1], "--json", str(out), "--sequences", "1,2", "--big", "3")
    command += ["--overload-batch", "2", "--one-way-ms", "0,1"]
    assert main([*command, "--figures", "capacity", "--repetitions", "1"]) == 0
    first = json.loads(out.read_text())
    assert len(first["records"]) == 2
    assert main([*command, "--repetitions", "1", "--plot", str(plot)]) == 0
    content = json.loads(out.read_text())
    assert first["records"].items() <= content["records"].items(), "what was measured is kept as it was"
    assert len(content["records"]) == 2 + 2 + 5 + 5 + 3
    records = content["records"]
    targets = [target for record in records.values() for target in record["targets"]]
    assert sum(target["finished"] for target in targets) > 0
    assert sum(target["different"] for target in targets) == 0, "what a replaying target emits is the recorded text"
    for key, record in records.items():
        linked = not key.endswith(("|ar|0", "|fallback only|0"))
        assert (record["draft"] is not None) == linked
        if not linked:
            assert not any(count for target in record["targets"] for count in target["lookups"].values())
    assert any(target["lookups"]["hit"] for target in targets)
    figures = content["figures"]
    assert list(figures) == ["capacity", "sharing", "overload", "latency", "sharding"]
    assert set(figures["overload"]["cells"][3]["peaks"]) == {"messages", "rows", "sessions", "unsent"}
    assert plot.stat().st_size > 0
    printed = capsys.readouterr().out
    for said in ("capacity: median", "small target ", "slowest target", "push by pull"):
        assert said in printed
    assert main([*command, "--k", "2"]) == 2
    assert "other settings (k)" in capsys.readouterr().err


def test_what_cannot_be_replayed(
    outcomes: Path, pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(command: list[str], code: int = 2) -> str:
        assert main(command) == code
        return capsys.readouterr().err

    assert "either --record FILE" in refused(["bench", "pool"])
    assert "--prompts FILE.jsonl" in refused(["bench", "pool", "--record", str(tmp_path / "new.json")])
    assert "make them with --record" in refused(replay(tmp_path / "missing.json", pair[1]))
    assert "none of 0.5" in refused(replay(outcomes, pair[1], "--temperature", "0.5"))
    assert "needs 0 among its numbers" in refused(replay(outcomes, pair[1], "--one-way-ms", "1"))
    assert "no multiple" in refused(replay(outcomes, pair[1], "--sequences", "3", "--per-target", "2"))
    other = make_checkpoint(tmp_path / "other", vocab=300)
    assert "cannot draft for" in refused(replay(outcomes, str(other)), 1)
