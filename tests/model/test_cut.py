"""Cutting a draft out of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.gguf_files import write_gguf
from support.tiny import make_checkpoint

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import open_checkpoint
from ssd_cluster.model.cut import cut_checkpoint
from ssd_cluster.text import Tokenizer, compare


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_cut_keeps_layers_head_and_tokenizer(tmp_path: Path, family: str, tie: bool) -> None:
    source = make_checkpoint(tmp_path / "source", family, layers=4, tie=tie, eos=(2, 0))
    out = cut_checkpoint(source, tmp_path / "cut", [0, 3])
    before, after = dict(open_checkpoint(source).tensors()), dict(open_checkpoint(out).tensors())
    for name, tensor in after.items():
        origin = name.replace("layers.1.", "layers.3.")
        assert torch.equal(tensor, before[origin]), name
    per_layer = sum(name.startswith("model.layers.0.") for name in before)
    assert len(before) - len(after) == 2 * per_layer
    assert open_checkpoint(out).config["num_hidden_layers"] == 2
    ours, theirs = Tokenizer.load(out), Tokenizer.load(source)
    assert compare(ours, theirs) is None
    assert ours.eos_ids == theirs.eos_ids == (2, 0)
    chat = [{"role": "user", "content": "a guess"}]
    assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)


def test_cut_runs_as_the_first_layers_of_the_source(tmp_path: Path) -> None:
    """Logits of the cut = head and final norm applied to the source's hidden state after those layers."""
    from transformers import AutoModelForCausalLM

    source = make_checkpoint(tmp_path / "source", layers=3, tie=True)
    out = cut_checkpoint(source, tmp_path / "cut", range(2))
    whole, part = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (source, out))
    ids = torch.tensor([[3, 17, 200, 42]])
    with torch.inference_mode():
        hidden = whole.model(ids, output_hidden_states=True).hidden_states[2]
        expected = whole.lm_head(whole.model.norm(hidden))
        assert torch.allclose(part(ids).logits, expected, atol=1e-5)


def test_layer_types_follow_the_layers(tmp_path: Path) -> None:
    types = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    extra = {"layer_types": types, "max_window_layers": 2}
    source = make_checkpoint(tmp_path / "source", "qwen2", layers=4, config=extra)
    config = open_checkpoint(cut_checkpoint(source, tmp_path / "cut", [1, 2, 3])).config
    assert config["layer_types"] == types[1:]
    assert config["max_window_layers"] == 1


def test_cut_of_a_gguf_file(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", layers=3, tie=True)
    out = cut_checkpoint(write_gguf(source, tmp_path / "source.gguf"), tmp_path / "cut", [0, 1])
    original = dict(open_checkpoint(source).tensors())
    assert all(torch.equal(tensor, original[name]) for name, tensor in open_checkpoint(out).tensors())
    assert compare(Tokenizer.load(out), Tokenizer.load(source)) is None


@pytest.mark.parametrize("layers", [[], [1, 0], [0, 0], [-1], [0, 4]])
def test_layers_that_make_no_sense_are_refused(tmp_path: Path, layers: list[int]) -> None:
    source = make_checkpoint(tmp_path / "source", layers=4)
    with pytest.raises(CheckpointError, match=r"within 0\.\.3"):
        cut_checkpoint(source, tmp_path / "cut", layers)
    assert not (tmp_path / "cut").exists()


def test_same_cut_again_is_a_no_op_and_another_one_is_refused(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", layers=4)
    out = cut_checkpoint(source, tmp_path / "cut", [0, 1])
    stamp = (out / "model.safetensors").stat().st_mtime_ns
    assert cut_checkpoint(source, out, (0, 1)) == out
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(CheckpointError, match="is not this cut"):
        cut_checkpoint(source, out, [0, 2])
    other = make_checkpoint(tmp_path / "other", layers=4, seed=7)
    with pytest.raises(CheckpointError, match="is not this cut"):
        cut_checkpoint(other, out, [0, 1])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(CheckpointError, match="is not this cut"):
        cut_checkpoint(source, tmp_path / "mine", [0, 1])
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_config_records_where_the_cut_came_from(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "source", layers=4)
    out = cut_checkpoint(source, tmp_path / "cut", [0, 1])
    mark = json.loads((out / "config.json").read_text())["ssd_cluster_cut"]
    assert mark == {"source": open_checkpoint(source).hash, "layers": [0, 1]}
