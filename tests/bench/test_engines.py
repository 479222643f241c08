"""The real thing on tiny models: workers, a draft process, the command from prompts to table and file."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import pytest
from support.tiny import make_checkpoint, perturb

from ssd_cluster.bench.command import add_arguments, run
from ssd_cluster.bench.engines import WorkerEngine
from ssd_cluster.bench.handle import Workload
from ssd_cluster.bench.spec import EngineSpec, PairOptions, engine_spec
from ssd_cluster.config import SpeculationSettings
from ssd_cluster.errors import EngineStopped, StartupError
from ssd_cluster.types import Mode


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target")
    return str(target), str(perturb(target, folder / "draft", noise=0.02))


def spec(mode: Mode, pair: tuple[str, str]) -> EngineSpec:
    cores = sorted(os.sched_getaffinity(0))
    speculation = SpeculationSettings(k=3, rows=6)
    options = PairOptions(target=pair[0], draft=pair[1], speculation=speculation, draft_cores=(cores[-1],))
    return engine_spec(mode, options)


def test_bench_command(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "the river ran"}\n{"prompt": "once upon a time"}\n{"prompt": "unused"}\n')
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = [
        "--prompts", str(prompts), "--limit", "2", "--max-tokens", "24", "--repetitions", "2", "--ignore-eos",
        "--target", pair[0], "--draft", pair[1], "--dtype", "float32", "--k", "3", "--rows", "6",
        "--wait-ms", "5000",
        "--temperature", "1", "--batch", "2", "--json", str(out),
        "--draft-cores", str(sorted(os.sched_getaffinity(0))[-1]),
    ]  # fmt: skip
    assert run(parser.parse_args(arguments)) == 0
    report = json.loads(out.read_text())
    config, results = report["config"], report["results"]
    assert [(r["mode"], r["temperature"], r["batch"]) for r in results] == [
        (mode, 1.0, 2) for mode in ("ar", "sd", "ssd")
    ]
    assert config["different_outputs"] == {"ar": 0, "sd": 0, "ssd": 0}, "float32: the same tokens in every mode"
    assert config["dtype"] == "float32"
    assert config["cpu"]
    assert config["torch"]
    for result in results:
        speed, ms = result["tokens_per_s"], result["round_ms"]
        assert 0 < speed["min"] <= speed["median"] <= speed["max"]
        assert ms["target_forward"] > 0
        assert ms["total"] == pytest.approx(sum(v for k, v in ms.items() if k not in ("total", "hit_path")))
        assert result["tokens_per_round"] >= 1
    plain, synchronous, _ = results
    assert (plain["tokens_per_round"], plain["acceptance"], plain["hit_rate"]) == (1, None, None)
    assert synchronous["tokens_per_round"] > 1
    assert synchronous["acceptance"] > 0
    assert synchronous["round_ms"]["draft_wait"] > 0
    assert synchronous["hit_rate"] is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(results)


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"mode ar: .*missing"):
        WorkerEngine(spec(Mode.AR, (str(tmp_path / "missing"), "")))


def test_a_worker_that_dies_is_noticed_and_leaves_nothing(pair: tuple[str, str]) -> None:
    engine = WorkerEngine(spec(Mode.AR, pair))
    work = Workload(prompts=("the river",), max_tokens=4, raw=True, ignore_eos=True)
    assert engine.run(work).requests[0].completion_tokens == 4
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(EngineStopped, match="ended"):
        engine.run(work)
    engine.close()
    engine.close()
    assert not Path(f"/proc/{engine.pid}").exists()
