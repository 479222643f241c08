"""Opening checkpoints: safetensors folders, what is refused, and how names are resolved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny import make_checkpoint

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model import checkpoint as module
from ssd_cluster.model.checkpoint import INDEX, expected_names, first_missing, open_checkpoint, resolve_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "tiny", layers=2)


def _edit_config(folder: Path, **entries: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def _shard(folder: Path) -> dict[str, str]:
    """Split model.safetensors into two files with an index; returns the weight map."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return weight_map


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_tensors_are_those_of_the_file_and_exactly_the_expected_ones(tmp_path: Path, family: str, tie: bool) -> None:
    folder = make_checkpoint(tmp_path / "tiny", family, tie=tie)
    checkpoint = open_checkpoint(folder)
    read = dict(checkpoint.tensors())
    stored = load_file(folder / "model.safetensors")
    assert read.keys() == stored.keys() == set(expected_names(checkpoint.config)) == set(checkpoint.names())
    assert all(torch.equal(read[name], stored[name]) for name in stored)
    assert checkpoint.generation_config["eos_token_id"] == 2


def test_shards_give_the_same_tensors_as_one_file(folder: Path) -> None:
    whole = dict(open_checkpoint(folder).tensors())
    _shard(folder)
    sharded = dict(open_checkpoint(folder).tensors())
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


def test_generation_config_may_be_absent(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert open_checkpoint(folder).generation_config == {}


def test_missing_shard_is_named(folder: Path) -> None:
    _shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors is missing"):
        open_checkpoint(folder)


def test_index_that_promises_too_much_is_refused(folder: Path) -> None:
    weight_map = _shard(folder)
    name = next(iter(weight_map))
    other = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} - {weight_map[name]}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | {name: other.pop()}}))
    with pytest.raises(CheckpointError, match="does not hold it"):
        open_checkpoint(folder)


@pytest.mark.parametrize("keep", [0, 4, 200, -1])
def test_truncated_safetensors_is_refused_with_what_to_do(folder: Path, keep: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"truncated or damaged.*fetch it again"):
        open_checkpoint(folder)


def test_missing_tensor_is_named(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.1\.mlp\.up_proj\.weight is missing"):
        open_checkpoint(folder)


def test_untied_model_needs_its_head_and_a_tied_one_does_not(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny", tie=True)
    assert "lm_head.weight" not in dict(open_checkpoint(folder).tensors())
    _edit_config(folder, tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("family", ["gpt2", None])
def test_unknown_architecture_is_refused_and_the_known_ones_are_named(folder: Path, family: str | None) -> None:
    _edit_config(folder, model_type=family)
    with pytest.raises(CheckpointError, match="llama, mistral, qwen2, qwen3"):
        open_checkpoint(folder)


@pytest.mark.parametrize("layers", [0, None, "two"])
def test_nonsense_layer_count_is_refused(folder: Path, layers: object) -> None:
    _edit_config(folder, num_hidden_layers=layers)
    with pytest.raises(CheckpointError, match="num_hidden_layers"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]"])
def test_damaged_config_is_refused(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_checkpoint(folder)


def test_folder_without_weights_says_which_format_is_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="convert them to safetensors"):
        open_checkpoint(folder)


def test_hash_tells_weights_and_configurations_apart_and_is_stable(tmp_path: Path) -> None:
    first = make_checkpoint(tmp_path / "a", seed=0)
    same = make_checkpoint(tmp_path / "b", seed=0)
    other_weights = make_checkpoint(tmp_path / "c", seed=1)
    other_config = make_checkpoint(tmp_path / "d", seed=0, rope_theta=20_000.0)
    hashes = [open_checkpoint(folder).hash for folder in (first, same, other_weights, other_config)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_hash_sees_a_change_at_either_end_of_the_weights(folder: Path) -> None:
    before = open_checkpoint(folder).hash
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    assert open_checkpoint(folder).hash != before


def test_resolve_takes_folders_and_gguf_files(folder: Path, tmp_path: Path) -> None:
    assert resolve_checkpoint(str(folder)) == folder
    single = tmp_path / "single"
    single.mkdir()
    (single / "model.gguf").write_bytes(b"GGUF")
    assert resolve_checkpoint(str(single)) == single / "model.gguf"
    assert resolve_checkpoint(str(single / "model.gguf")) == single / "model.gguf"


def test_resolve_refuses_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "empty").mkdir()
    cases = {
        str(tmp_path): "holds 2 .gguf files",
        str(tmp_path / "empty"): "no config.json and no .gguf",
        str(folder / "model.safetensors"): "give the folder",
        str(tmp_path / "absent"): "no model",
        "./absent/model": "no model",
        "some/absent.gguf": "no model",
        "word": "smollm2-135m-instruct",
    }
    for path, message in cases.items():
        with pytest.raises(CheckpointError, match=message):
            resolve_checkpoint(path)


def test_hub_id_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="copy the model into a folder"):
        resolve_checkpoint("some-owner/some-model")


def test_first_missing() -> None:
    assert first_missing("abc", "cab") is None
    assert first_missing("abcd", "ca") == "b"


def test_embedded_names_go_to_the_assets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ssd_cluster.model import assets

    monkeypatch.setattr(assets, "ensure_smollm2", lambda progress: tmp_path / "target")
    monkeypatch.setattr(assets, "ensure_draft", lambda progress: tmp_path / "draft")
    assert resolve_checkpoint(module.EMBEDDED_TARGET) == tmp_path / "target"
    assert resolve_checkpoint(module.EMBEDDED_DRAFT) == tmp_path / "draft"
