"""``bench rules`` and ``bench sampling`` on a tiny pair, as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.tiny import make_checkpoint, perturb

from ssd_cluster.bench.rules.rounds import RULES
from ssd_cluster.bench.sampling.outcomes import NOT_NAMED, hits_of_plan, hits_of_width
from ssd_cluster.cli import build_parser, main
from ssd_cluster.commands.bench import spelled_out
from ssd_cluster.config import FanoutLaw
from ssd_cluster.speculation.fanout import make_planner

PROMPTS = "tests/data/prompts.jsonl"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pair")
    target = make_checkpoint(folder / "target")
    draft = perturb(target, folder / "draft", noise=0.05)
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "the river ran"}\n{"prompt": "a right guess"}\n')
    pair = ["--target", str(target), "--draft", str(draft), "--dtype", "float32", "--ignore-eos"]
    return ["--prompts", str(prompts), "--max-tokens", "16", "--k", "3", *pair]


def test_rules_in_pieces(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rules.json"
    command = ["bench", "rules", *options, "--temperature", "0,1", "--drafts", "2", "--json", str(out)]
    assert main([*command, "--limit", "1", "--rules", "token,block"]) == 0
    first = json.loads(out.read_text())
    assert len(first["records"]) == 4
    assert main(command) == 0
    printed = capsys.readouterr().out
    content = json.loads(out.read_text())
    assert first["records"].items() <= content["records"].items(), "what was there is kept as it was"
    assert len(content["records"]) == 2 * 2 * len(RULES)
    results = content["results"]
    assert len(results) == 2 * len(RULES)
    for result in results:
        assert 1 <= result["tokens_per_call"]["value"] <= 4
        assert (result["less_token_wise"] is None) == (result["rule"] == "token")
        assert result["lossless"] is (result["rule"] != "hsd_uncapped_lossy")
        assert result["prompts"] == 2
    greedy = {r["rule"]: r["tokens_per_call"]["value"] for r in results if r["temperature"] == 0}
    assert greedy["token"] == greedy["block"] == greedy["equality"] == greedy["multi_hsd"]
    assert "NOT LOSSLESS" in printed
    assert main([*command, "--seed", "9"]) == 2
    assert "other settings (seed)" in capsys.readouterr().err


def test_sampling(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot = tmp_path / "sampling.json", tmp_path / "figures" / "sampling.png"
    command = ["bench", "sampling", *options, "--temperature", "1", "--c", "1,0", "--f", "3", "--rows", "6"]
    assert main([*command, "--json", str(out), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    content = json.loads(out.read_text())
    results = {(r["rule"], r["c"]): r for r in content["results"]}
    assert set(results) == {("coupled", 1), ("token", 1), ("token", 0), ("block", 1), ("block", 0)}
    for rule in ("token", "block"):
        assert results[rule, 0]["hits_f"]["value"] > results[rule, 1]["hits_f"]["value"], "C = 0 puts t* on the guesses"
    for record in content["records"].values():
        assert record["rounds"] == len(record["outcomes"]), "no text ended"
        assert all(rank >= NOT_NAMED for _, _, rank in record["outcomes"])
    assert "T = 1, predicted tokens/s, fastest first: " in printed
    times = content["times_s"]
    assert main([*command, "--json", str(out)]) == 0
    assert json.loads(out.read_text())["times_s"] == times, "measured once"
    assert main([*command, "--json", str(out), "--retime"]) == 0
    assert json.loads(out.read_text())["times_s"] != times


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["rules", "--rules", "token,nonsense"], "there is no nonsense"),
        (["rules", "--temperature", "-1"], "temperature"),
        (["rules", "--k", "99"], "--k"),
        (["sampling", "--c", "1.5"], "--c"),
    ],
)
def test_wrong_options_are_one_line(
    options: list[str], more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", more[0], *options, *more[1:]]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_bench_alone_means_modes() -> None:
    assert spelled_out(["--modes", "ar"]) == ["modes", "--modes", "ar"]
    assert spelled_out(["rules", "--k", "3"]) == ["rules", "--k", "3"]
    assert spelled_out(["--help"]) == ["--help"]
    arguments = build_parser().parse_args(["bench", *spelled_out(["--modes", "ar", "--prompts", PROMPTS])])
    assert arguments.run.__module__ == "ssd_cluster.bench.command"


def test_hits_of_a_width_and_of_a_planner() -> None:
    outcomes = [[(3, 0, 0), (3, 0, 2), (3, 3, 1), (3, 1, NOT_NAMED)], [(3, 0, 3)] * 60]
    assert hits_of_width(outcomes, 2) == [(2, 4), (0, 60)]
    assert hits_of_width(outcomes, 4) == [(3, 4), (60, 60)]
    (_, (learned, of)) = hits_of_plan(outcomes, make_planner(FanoutLaw.MEASURED), 6)
    assert of == 60
    assert learned > 40, "after some rounds the planner knows that the fourth guess at length 0 is the one"
    (_, (uniform, _)) = hits_of_plan(outcomes, make_planner(FanoutLaw.UNIFORM), 6)
    assert uniform == 0, "two guesses for a length do not reach it"
