"""Prompt files and options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ssd_cluster.bench.command import add_arguments, parse_modes, run
from ssd_cluster.bench.options import cpu_name
from ssd_cluster.bench.spec import PairOptions, engine_spec
from ssd_cluster.bench.workload import load_prompts
from ssd_cluster.config import SpeculationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode


def test_prompts_in_order_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"prompt": "one", "id": 1}\n\n{"prompt": "zwei ß"}\n{"prompt": "three"}\nnot read\n', encoding="utf-8"
    )
    assert load_prompts(path, 2) == ("one", "zwei ß")
    with pytest.raises(ConfigError, match=r"p\.jsonl:5 is not JSON"):
        load_prompts(path)


@pytest.mark.parametrize("content", ['{"text": "x"}', '["x"]', '{"prompt": 3}', '{"prompt": ""}'])
def test_lines_without_a_prompt_are_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + content)
    with pytest.raises(ConfigError, match=r"p\.jsonl:2"):
        load_prompts(path)


def test_a_missing_or_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_prompts(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match="no prompts"):
        load_prompts(tmp_path / "empty.jsonl")


def test_modes() -> None:
    assert parse_modes("ar, ssd") == [Mode.AR, Mode.SSD]
    for text in ("ar,eagle", "ar,ar", ""):
        with pytest.raises(ConfigError, match="--modes"):
            parse_modes(text)


@pytest.mark.parametrize("option", [["--temperature", "warm"], ["--batch", "1,0"], ["--modes", "x"]])
def test_wrong_options_are_refused_before_anything_starts(tmp_path: Path, option: list[str]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}')
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(ConfigError, match=option[0]):
        run(parser.parse_args(["--prompts", str(path), *option]))


def test_engines_of_the_three_modes() -> None:
    speculation = SpeculationSettings(k=3, rows=8)
    options = PairOptions(
        target="t", draft="d", speculation=speculation, target_cores=(0,), draft_cores=(1, 2), max_batch=4
    )
    plain, synchronous, full = (engine_spec(mode, options) for mode in Mode)
    assert plain.draft is None
    assert synchronous.draft is not None
    assert full.draft is not None
    assert synchronous.draft.model.cores == synchronous.target.model.cores == (0,)
    assert (full.target.model.cores, full.draft.model.cores) == ((0,), (1, 2))
    assert (full.target.speculation.k, full.target.speculation.rows, full.draft.row_credit) == (3, 8, 32)
    assert {spec.target.max_batch for spec in (plain, synchronous, full)} == {4}


def test_ssd_without_a_second_core_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3}, raising=False)
    options = PairOptions(target="t", draft="d", speculation=SpeculationSettings())
    assert engine_spec(Mode.SD, options).target.model.cores == (3,)
    with pytest.raises(ConfigError, match="second core"):
        engine_spec(Mode.SSD, options)


def test_the_cpu_has_a_name() -> None:
    assert cpu_name()
