"""A draft with another tokenizer is found out before any model is loaded, with the first token that differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.live_cluster import free_port
from support.tiny import make_checkpoint, perturb

from ssd_cluster.cli import main
from ssd_cluster.errors import CheckpointError, PairMismatch
from ssd_cluster.serve.checks import pairs_of
from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.serve.local import serve
from ssd_cluster.text.pairs import require_same_ids


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("start") / "target")


@pytest.fixture(scope="module")
def stranger(target: Path) -> Path:
    """The target's sister whose tokenizer has swapped two letters."""
    folder = perturb(target, target.parent / "stranger")
    data = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


def first_difference(target: Path) -> str:
    vocabulary = json.loads((target / "tokenizer.json").read_text())["model"]["vocab"]
    index = min(vocabulary["a"], vocabulary["b"])
    letters = "ab" if vocabulary["a"] == index else "ba"
    return f"token id {index} is {letters[0]!r} in the first and {letters[1]!r} in the second tokenizer"


def serve_file(folder: Path, target: Path, draft: Path, *, inside: bool) -> Path:
    model = {"path": str(draft)}
    where = {"in_process_draft": {"model": model}} if inside else {"draft_application": "drafts"}
    target_args = {"model": {"path": str(target)}, "served_name": "tiny"} | where
    applications: list[dict[str, Any]] = [{"name": "tiny", "args": {"target": target_args}}]
    if not inside:
        applications.append({"name": "drafts", "route_prefix": None, "args": {"draft": {"model": model}}})
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump({"http_options": {"port": free_port()}, "applications": applications}))
    return file


def test_the_first_difference_is_named(target: Path, stranger: Path, tmp_path: Path) -> None:
    require_same_ids(str(target), str(target))
    require_same_ids(str(target), str(perturb(target, tmp_path / "friend")))
    with pytest.raises(PairMismatch) as caught:
        require_same_ids(str(target), str(stranger))
    assert first_difference(target) in caught.value.message
    assert str(stranger) in caught.value.message


def test_other_files_with_the_same_ids_pass(target: Path, tmp_path: Path) -> None:
    other = perturb(target, tmp_path / "other")
    data = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(data, indent=1))
    require_same_ids(str(target), str(other))
    (other / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError):
        require_same_ids(str(target), str(other))


@pytest.mark.parametrize("inside", [False, True])
def test_serve_refuses_before_it_starts_anything(
    target: Path,
    stranger: Path,
    inside: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SSD_CLUSTER_CACHE", str(tmp_path / "cache"))
    file = serve_file(tmp_path, target, stranger, inside=inside)
    assert pairs_of(read_serve_file(file)) == [(str(target), str(stranger))]
    with pytest.raises(PairMismatch, match="cannot draft for"):
        serve(file)
    assert "starting Ray" not in capsys.readouterr().out
    assert list((tmp_path / "cache").iterdir()) == []


def test_generate_refuses_in_one_line(target: Path, stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", str(target), "--draft", str(stranger), "--mode", "ssd", "--prompt", "x"]
    assert main(["generate", *arguments]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert first_difference(target) in line
