"""The command line on tiny checkpoints: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny import make_checkpoint, perturb

from ssd_cluster.cli import COMMANDS, main
from ssd_cluster.commands.cut import parse_layers
from ssd_cluster.errors import ConfigError


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target", layers=3)
    return str(target), str(perturb(target, folder / "draft", noise=0.05, seed=1))


def generate(pair: tuple[str, str], capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    fixed = f"--raw --target {pair[0]} --draft {pair[1]} --dtype float32 --max-tokens 24 --ignore-eos --json".split()
    code = main(["generate", "--prompt", "hello there", *fixed, *options])
    assert code == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_generate_prints_one_object_and_modes_agree(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    results = {
        mode: generate(pair, capsys, "--mode", mode, "--temperature", "0.8", "--seed", "3")
        for mode in ("ar", "sd", "ssd")
    }
    plain = results["ar"]
    assert {"text", "token_ids", "finish_reason", "usage", "metrics", "timing", "config"} <= plain.keys()
    assert plain["usage"]["completion_tokens"] == len(plain["token_ids"]) == 24  # type: ignore[index, arg-type]
    assert plain["finish_reason"] == "length"
    assert set(plain["timing"]) == {"prefill_s", "decode_s", "tokens_per_s"}  # type: ignore[arg-type]
    for mode in ("sd", "ssd"):
        assert results[mode]["token_ids"] == plain["token_ids"]
        assert results[mode]["config"]["target"]["mode"] == mode  # type: ignore[index]
    assert results["sd"]["metrics"]["speculative_decoding"]["num_spec_steps"] > 0  # type: ignore[index]


def test_generate_over_grpc_gives_the_same_text(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    plain = generate(pair, capsys, "--mode", "ar")
    remote = generate(pair, capsys, "--mode", "ssd", "--link", "grpc", "--k", "3", "--rows", "4")
    assert remote["token_ids"] == plain["token_ids"]
    assert remote["config"]["target"]["speculation"]["k"] == 3  # type: ignore[index]


def test_check_pair_reports_and_refuses(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pair.json"
    assert main(["check-pair", *pair, "--dtype", "float32", "--max-tokens", "16", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [a["temperature"] for a in report["acceptance"]] == [0.0, 1.0]
    assert all(1 <= a["tokens_per_round"] <= report["k"] + 1 for a in report["acceptance"])
    assert all(ms > 0 for name, ms in report["times_ms"].items() if name != "link")
    assert "tokens per round" in capsys.readouterr().out
    stranger = make_checkpoint(tmp_path / "stranger", vocab=300, seed=9)
    assert main(["check-pair", pair[0], str(stranger), "--dtype", "float32"]) == 1
    assert "cannot draft for" in capsys.readouterr().err


def test_cut_keeps_the_named_layers(pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cut", pair[0], str(tmp_path / "cut"), "--layers", "0,2"]) == 0
    assert json.loads((tmp_path / "cut" / "config.json").read_text())["num_hidden_layers"] == 2
    assert parse_layers("3") == [0, 1, 2]
    with pytest.raises(ConfigError, match="a count or a list"):
        parse_layers("first")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--k", "99"], 2, "--k"),
        (["--mode", "sd", "--link", "grpc"], 2, "mode sd"),
        (["--temperature", "-1"], 2, "temperature"),
        (["--target", "/nowhere/model"], 1, "/nowhere/model"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], code: int, message: str, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["generate", "--prompt", "x", "--target", pair[0], "--draft", pair[1]]
    assert main([*base, *options]) == code
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0
        assert "usage:" in capsys.readouterr().out
