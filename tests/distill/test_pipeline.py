"""The command from a tiny target to a draft that serves it, and what it says when something is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from support.tiny import make_checkpoint

from ssd_cluster.bench.local import LocalEngine
from ssd_cluster.bench.spec import EngineSpec, LinkBackend
from ssd_cluster.cli import main
from ssd_cluster.config import DraftSettings, DType, ModelSettings, SpeculationSettings, TargetSettings
from ssd_cluster.distill.initialise import check_start
from ssd_cluster.distill.report import tokens_by_lookahead
from ssd_cluster.distill.settings import DistillSettings
from ssd_cluster.distill.shards import read_shard
from ssd_cluster.distill.train import Trainer
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import open_checkpoint
from ssd_cluster.model.packaged import content_hash, pack_draft, unpack_draft
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.types import Mode

RECIPE = {
    "seed": 7,
    "dtype": "float32",
    "collect": {
        "shards": 3, "lanes_per_shard": 1, "lane_width": 16, "lanes": 2, "top_m": 8, "prompt_tokens": 8,
        "answer_tokens": 24, "code_prompts": False,
    },
    "shape": {"layers": [0, 2], "head": 128},
    "train": {"passes": 8, "batch_tokens": 256, "learning_rate": 3e-3, "warmup_steps": 4, "evaluate_every": 20},
    "report": {"max_tokens": 12},
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("pipeline") / "target", layers=3, tie=True)


@pytest.fixture(scope="module")
def finished(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the draft in "draft", its work in "draft-work", its int8 form in "packed"."""
    folder = tmp_path_factory.mktemp("finished")
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE))
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "once upon a time"}\n\n{"prompt": "the sea"}\n')
    arguments = ["distill", str(target), str(folder / "draft"), "--recipe", str(recipe), "--prompts", str(prompts)]
    assert main([*arguments, "--max-minutes", "1e-6"]) == 3, "no time for training: to be called again"
    assert not (folder / "draft").exists()
    shard = folder / "draft-work" / "data" / "shard-00001.safetensors"
    others = {p.name: p.read_bytes() for p in shard.parent.iterdir() if p != shard}
    written = [d.tokens.tolist() for d in read_shard(shard)]
    shard.unlink()
    assert main([*arguments, "--pack", str(folder / "packed")]) == 0
    assert {p.name: p.read_bytes() for p in shard.parent.iterdir() if p != shard} == others, "only what was missing"
    assert [d.tokens.tolist() for d in read_shard(shard)] == written
    return folder


def test_draft_is_a_checkpoint_with_a_reduced_head(finished: Path, target: Path) -> None:
    tensors = dict(open_checkpoint(finished / "draft").tensors())
    assert tensors["lm_head.weight"].shape == (128, 64)
    assert tensors["lm_head_ids"].tolist() == sorted(set(tensors["lm_head_ids"].tolist()))
    embedding = dict(open_checkpoint(target).tensors())["model.embed_tokens.weight"]
    assert torch.equal(tensors["model.embed_tokens.weight"], embedding)


def test_report_says_what_the_draft_is_worth(finished: Path) -> None:
    report = json.loads((finished / "draft" / "report.json").read_text())
    assert (finished / "draft" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert [a["temperature"] for a in report["acceptance"]] == [0.0, 0.7, 1.0]
    for entry in report["acceptance"]:
        tokens = entry["tokens_per_round_by_k"]
        assert len(tokens) == 8
        assert tokens == sorted(tokens)
        assert 1.0 <= tokens[0] <= 2.0
    assert [a["temperature"] for a in report["ratio"]] == [0.7, 1.0]
    assert all(len(entry["tokens_per_round_by_k"]) == 8 for entry in report["ratio"])
    assert set(report["held_out"]["overlap"]) == {"0.7", "1"}
    assert report["held_out"]["greedy_match"] > 0.1
    assert set(report["step"]["rows_ms"]) == {"1", "2", "4", "8", "16", "32"}
    assert report["step"]["weight_bytes"] == 4 * (2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128) + 128 * 64)
    assert set(report["minutes"]) >= {"collect", "initialise", "train"}
    assert set(report["predicted"]) == {"0", "0.7", "1"}
    assert report["settings"]["seed"] == 7


def test_tokens_by_lookahead_add_up() -> None:
    assert tokens_by_lookahead([0.5, 0.25, 0.0]) == [1.5, *[1.75] * 7]


def test_every_mode_writes_the_same_text_with_the_reduced_head(finished: Path, target: Path) -> None:
    """Ids outside the head are never drafted, so they end the kept part of a round; the text must not change."""
    target_model = ModelSettings(path=str(target), dtype=DType.FLOAT32, kv_tokens=2048)
    draft_model = ModelSettings(path=str(finished / "draft"), dtype=DType.FLOAT32, kv_tokens=2048)
    head = set(dict(open_checkpoint(finished / "draft").tensors())["lm_head_ids"].tolist())
    texts: dict[Mode, list[list[int]]] = {}
    kept = 0
    for mode in (Mode.AR, Mode.SD, Mode.SSD):
        speculation = SpeculationSettings(k=3, rows=6, wait_ms=2000)
        spec = EngineSpec(
            target=TargetSettings(model=target_model, mode=mode, speculation=speculation),
            draft=None if mode is Mode.AR else DraftSettings(model=draft_model, k_max=3, row_credit=6),
            link=LinkBackend.INPROCESS,
        )
        with LocalEngine(spec) as local:
            for temperature in (0.0, 1.0):
                params = SamplingParams(temperature=temperature, seed=11, max_tokens=40, ignore_eos=True)
                answer = local.complete(local.encode("the river ran to", True), params)
                texts.setdefault(mode, []).append(answer.token_ids)
                kept += answer.finished.speculation.num_accepted_draft_tokens
    assert texts[Mode.SD] == texts[Mode.AR]
    assert texts[Mode.SSD] == texts[Mode.AR]
    assert kept > 0
    assert any(token not in head for text in texts[Mode.AR] for token in text), "the text must leave the head"


def test_packed_draft_needs_its_own_target(finished: Path, target: Path, tmp_path: Path) -> None:
    names = {p.name for p in (finished / "packed").iterdir()}
    assert names == {"draft.safetensors", "config.json", "report.json", "report.png"}
    unpack_draft(finished / "packed", target, tmp_path)
    made, exact = (dict(open_checkpoint(p).tensors()) for p in (tmp_path, finished / "draft"))
    assert made.keys() == exact.keys()
    for name, tensor in exact.items():
        if name in ("lm_head_ids", "model.embed_tokens.weight"):
            assert torch.equal(made[name].float(), tensor.to(made[name].dtype).float()), name
        else:
            largest = tensor.abs().amax(-1, keepdim=True).float()
            assert bool(((made[name].float() - tensor.float()).abs() <= largest * (0.5 / 127 + 2**-8) + 1e-6).all()), (
                name
            )
    other = make_checkpoint(tmp_path / "other", layers=3, tie=True, seed=1)
    with pytest.raises(CheckpointError, match="was made for a target whose weights have hash"):
        unpack_draft(finished / "packed", other, tmp_path)
    with pytest.raises(CheckpointError, match="cannot be packed"):
        pack_draft(finished / "draft", other, tmp_path / "again")
    assert content_hash(open_checkpoint(target)) != content_hash(open_checkpoint(other))
    damaged = shutil.copytree(finished / "packed", tmp_path / "damaged")
    (damaged / "draft.safetensors").write_bytes((damaged / "draft.safetensors").read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="is damaged"):
        unpack_draft(damaged, target, tmp_path)


def run(arguments: list[str | Path], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["distill", *map(str, arguments)])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("collect: [1]", "collect"),
        ("train:\n  passes: -1", "train.passes"),
        ("surprise: 1", "surprise"),
        ("- 1", "must hold a mapping"),
        (":\n  - ]", "cannot read the recipe"),
    ],
)
def test_a_wrong_recipe_names_the_place(
    recipe: str, message: str, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe)
    code, error = run([target, tmp_path / "out", "--recipe", path], capsys)
    assert code == 2
    assert message in error


def test_wrong_files_and_folders_are_refused(
    finished: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text('{"text": "no prompt"}\n')
    code, error = run([target, tmp_path / "out", "--prompts", tmp_path / "p.jsonl"], capsys)
    assert (code, "cannot read prompts" in error) == (2, True)
    code, error = run([target, finished / "draft"], capsys)
    assert (code, "is not empty" in error) == (1, True)
    code, error = run([tmp_path / "nowhere", tmp_path / "out"], capsys)
    assert (code, "no model" in error) == (1, True)


def test_a_damaged_shard_and_other_settings_stop_the_command(
    finished: Path, target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = shutil.copytree(finished / "draft-work", tmp_path / "work")
    arguments: list[str | Path] = [target, tmp_path / "out", "--work", work, "--recipe", finished / "recipe.yaml"]
    code, error = run([*arguments, "--seed", "8"], capsys)
    assert (code, "other settings" in error) == (1, True)
    shard = work / "data" / "shard-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])
    code, error = run([*arguments, "--prompts", finished / "prompts.jsonl"], capsys)
    assert (code, "shard-00002" in error, "delete it" in error) == (1, True, True)


def test_training_goes_on_from_an_earlier_draft_of_the_same_shape(finished: Path, target: Path, tmp_path: Path) -> None:
    recipe = json.loads(json.dumps(RECIPE))
    recipe["shape"]["start"] = str(finished / "draft")
    recipe["train"] |= {"passes": 0.2, "evaluate_every": 1, "learning_rate": 1e-4}
    settings = DistillSettings.model_validate(recipe | {"target": str(target)})
    shards = sorted((finished / "draft-work" / "data").glob("shard-*"))
    documents = [document for shard in shards for document in read_shard(shard)]
    start = check_start(finished / "draft", target, settings.shape)
    trainer = Trainer(settings, start, tmp_path, documents, lambda line: None)
    assert trainer.run()
    first = json.loads((finished / "draft" / "report.json").read_text())["history"]
    assert trainer.history[0]["loss"] < 1.02 * first[-1]["loss"]
    with pytest.raises(CheckpointError, match="same shape"):
        check_start(finished / "draft", target, settings.shape.model_copy(update={"head": 64}))
    other = make_checkpoint(tmp_path / "other", layers=3, tie=True, seed=1)
    with pytest.raises(CheckpointError, match="another target"):
        check_start(finished / "draft", other, settings.shape)
