"""``bench fanout``, ``fallback`` and ``peers`` as typed, on a tiny pair in this process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.compiled import compiled
from support.here import HereEngine, here
from support.sse_server import sse_server
from support.tiny import make_checkpoint, perturb

from ssd_cluster.cli import main
from ssd_cluster.config import Fallback, FanoutLaw, MissPolicy, TargetSettings


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target")
    draft = perturb(target, folder / "draft", noise=0.03)
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "the river ran"}\n{"prompt": "a right guess"}\n')
    pair = ["--target", str(target), "--draft", str(draft), "--dtype", "float32", "--ignore-eos"]
    cores = ["--target-cores", "0", "--draft-cores", "0", "--wait-ms", "5000"]
    return ["--prompts", str(prompts), "--max-tokens", "16", "--k", "3", *pair, *cores, "--repetitions", "2"]


def test_fanout(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = here(monkeypatch)
    out, plot = tmp_path / "fanout.json", tmp_path / "fanout.png"
    command = ["bench", "fanout", *options, "--temperature", "0", "--rows", "4,8", "--json", str(out)]
    assert main([*command, "--plot", str(plot), "--alive", "2"]) == 0
    printed = capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert HereEngine.running == 0
    laws = {(spec.draft.fanout, spec.target.speculation.rows) for spec in started if spec.mode == "ssd" and spec.draft}
    assert laws == {(law, rows) for law in FanoutLaw for rows in (4, 8)}
    results = {r["name"]: r for r in json.loads(out.read_text())["results"]}
    assert len(results) == 2 + 6
    assert results["ar"]["hits"] is None
    for law in FanoutLaw:
        few, many = (results[f"{law.value} R={rows}"] for rows in (4, 8))
        assert 0 <= few["hits"]["low"] <= few["hits"]["value"] <= few["hits"]["high"] <= 1
        assert ("uniform R=4" in few["ratios"]) == ("uniform R=8" in many["ratios"]) == (law is not FanoutLaw.UNIFORM)
        assert few["tokens_per_s"]["min"] <= few["tokens_per_s"]["median"] <= few["tokens_per_s"]["max"]
    assert "2 repetitions" in printed
    before = len(started)
    assert main(command) == 0
    assert len(started) == before, "nothing is missing"
    assert main([*command, "--k", "2"]) == 2
    assert "other settings (k)" in capsys.readouterr().err


def test_fallback(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = here(monkeypatch)
    out, plot = tmp_path / "fallback.json", tmp_path / "fallback.png"
    command = ["bench", "fallback", *options, "--rows", "1", "--batch", "1,2", "--json", str(out), "--plot", str(plot)]
    assert main([*command, "--repetitions", "1"]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    ways = {
        (s.target.speculation.miss_policy, s.target.speculation.fallback, s.random_fallback)
        for s in started
        if s.mode == "ssd"
    }
    assert ways == {
        (MissPolicy.RULE, Fallback.NGRAM, False),
        (MissPolicy.ALWAYS_WAIT, Fallback.NGRAM, False),
        (MissPolicy.NEVER_WAIT, Fallback.NGRAM, False),
        (MissPolicy.NEVER_WAIT, Fallback.NONE, False),
        (MissPolicy.THRESHOLD, Fallback.NGRAM, False),
        (MissPolicy.NEVER_WAIT, Fallback.NONE, True),
    }
    content = json.loads(out.read_text())
    results = {(r["name"], r["batch"]): r for r in content["results"]}
    assert len(results) == 8 * 2
    requests = {name: [r for k, v in content["records"].items() if k.startswith(f"{name}|") for r in v["requests"]]
                for name in ("none", "random", "ar")}  # fmt: skip
    steps = {name: sum(r["spec_steps"] for r in of) for name, of in requests.items()}
    assert steps["random"] > steps["none"], "every miss verifies something"
    assert {r["output_crc"] for r in requests["random"]} == {r["output_crc"] for r in requests["ar"]}, "the same text"
    assert results["jit", 1]["round_ms"]["draft_wait"] > 0
    assert results["none", 1]["round_ms"]["draft_wait"] < results["jit", 1]["round_ms"]["draft_wait"]
    assert main([*command, "--batch", "3"]) == 2
    assert "a batch of 3 needs as many prompts" in capsys.readouterr().err


def test_no_server_can_be_told_to_verify_random_tokens() -> None:
    model = {"model": {"path": "x"}}
    with pytest.raises(ValueError, match="'ngram' or 'none'"):
        TargetSettings.model_validate(model | {"speculation": {"fallback": "random"}})
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        TargetSettings.model_validate(model | {"random_fallback": True})


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_peers_over_http(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = here(monkeypatch)
    out = tmp_path / "peers.json"
    with sse_server() as (url, bodies):
        command = [
            "bench", "peers", *options, "--json", str(out), "--sd-k", "2", "--transformers", "none",
            "--peer-cores", "0,1", "--alive", "6", "--plot", str(tmp_path / "p.png"),
        ]  # fmt: skip
        assert main([*command, "--endpoint", f"scripted={url}"]) == 0
        assert len(bodies) == 2 * 2 + 1, "two prompts, twice, and one to warm up"
        printed = capsys.readouterr().out
        assert main([*command, "--endpoint", f"ssd={url}"]) == 2
        assert main([*command, "--endpoint", url]) == 2
    results = {r["name"]: r for r in json.loads(out.read_text())["results"]}
    assert list(results) == ["ar", "ar on all cores", "sd", "sd on all cores", "ssd", "scripted"]
    assert results["scripted"]["tokens"] == 2 * 2 * 6, "usage says six each"
    assert "scripted" in printed
    assert [(s.mode, s.target.speculation.k, s.target.model.cores) for s in started] == [
        ("ar", 3, (0,)), ("ar", 3, (0, 1)), ("sd", 2, (0,)), ("sd", 2, (0, 1)), ("ssd", 3, (0,)),
    ]  # fmt: skip
    error = capsys.readouterr().err
    assert "every name may be used once" in error
    assert "--endpoint takes NAME=URL" in error


@pytest.mark.parametrize(("rounded", "weights"), [("draft", ("dtype", "int8")), ("both", ("int8", "int8"))])
def test_peers_with_int8_weights(
    rounded: str,
    weights: tuple[str, str],
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiled()
    started = here(monkeypatch)
    out = tmp_path / "peers.json"
    command = ["bench", "peers", *options, "--repetitions", "1", "--transformers", "none", "--peer-cores", "0"]
    assert main([*command, "--int8", rounded, "--json", str(out)]) == 0
    assert [spec.mode for spec in started] == ["ar", "sd", "ssd"]
    assert {spec.target.model.weights for spec in started} == {weights[0]}
    assert {spec.draft.model.weights for spec in started if spec.draft} == {weights[1]}
    assert main([*command, "--json", str(out)]) == 2, "another model's results"
    assert "int8" in capsys.readouterr().err
