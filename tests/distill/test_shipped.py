"""The draft in the package: small enough, whole, of the shape that its card and recipe say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from ssd_cluster.model.assets import PACKAGED_DRAFT
from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.model.packaged import SCALE, WEIGHTS

RECIPE = Path(__file__).parents[2] / "recipes" / "smollm2-135m-draft.yaml"


def test_packaged_file_is_small_and_matches_its_recipe() -> None:
    shape = yaml.safe_load(RECIPE.read_text())["shape"]
    config = json.loads((PACKAGED_DRAFT / "config.json").read_text())
    assert config["ssd_cluster_cut"]["layers"] == shape["layers"]
    assert (PACKAGED_DRAFT / WEIGHTS).stat().st_size <= 64 * 1024**2
    assert (PACKAGED_DRAFT / "README.md").read_text().startswith("# Draft for SmolLM2-135M-Instruct")
    tensors = load_file(PACKAGED_DRAFT / WEIGHTS)
    assert tensors["lm_head.weight"].shape == (shape["head"], config["hidden_size"])
    ids = tensors["lm_head_ids"]
    assert bool((ids[1:] > ids[:-1]).all())
    assert int(ids[0]) >= 0
    assert int(ids[-1]) < config["vocab_size"]
    matrices = [name for name, tensor in tensors.items() if tensor.dtype == torch.int8]
    assert len(matrices) == 1 + 7 * len(shape["layers"])
    for name in matrices:
        assert int(tensors[name].abs().max()) == 127
        assert bool((tensors[name + SCALE] > 0).all())


@pytest.mark.real
def test_packaged_draft_becomes_a_checkpoint_of_the_embedded_target() -> None:
    draft, target = (resolve_checkpoint(f"smollm2-135m-{name}") for name in ("draft", "instruct"))
    tensors = dict(open_checkpoint(draft).tensors())
    name = "model.embed_tokens.weight"
    assert torch.equal(tensors[name], dict(open_checkpoint(target).tensors())[name])
    assert tensors["lm_head.weight"].dtype == torch.bfloat16
