"""What each rank reads of a checkpoint, and which models can be split how."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from support.gguf_files import write_gguf
from support.tiny import make_checkpoint

from ssd_cluster.config import DraftSettings, ModelSettings
from ssd_cluster.errors import CheckpointError, ConfigError
from ssd_cluster.model.checkpoint import open_checkpoint
from ssd_cluster.model.parallel.sharding import Shard, shard_of
from ssd_cluster.model.runner import load_runner, parse


def parts(folder: Path, size: int) -> list[dict[str, torch.Tensor]]:
    checkpoint = open_checkpoint(folder)
    return [dict(checkpoint.tensors(shard_of(parse(checkpoint), rank, size).cut)) for rank in range(size)]


def test_parts_put_together_are_the_whole(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen2", vocab=333)
    whole = dict(open_checkpoint(folder).tensors())
    first, second = parts(folder, 2)
    assert first.keys() == second.keys() == whole.keys()
    for name, tensor in whole.items():
        if "norm" in name:
            assert torch.equal(first[name], tensor)
            assert torch.equal(second[name], tensor)
        else:
            axis = 1 if "o_proj" in name or "down_proj" in name else 0
            assert torch.equal(torch.cat([first[name], second[name]], axis), tensor), name
    halves = sum(tensor.numel() for name, tensor in first.items() if "norm" not in name)
    assert halves <= 0.51 * sum(tensor.numel() for tensor in whole.values())


def test_a_gguf_file_is_cut_alike(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    file = write_gguf(folder, tmp_path / "tiny.gguf")
    for stored, read in zip(parts(folder, 2), parts(file, 2), strict=True):
        assert stored.keys() == read.keys()
        for name, tensor in stored.items():
            assert torch.equal(read[name], tensor), name


def test_a_single_key_head_is_read_by_all(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, heads=8, kv_heads=2, head_dim=8)
    whole = dict(open_checkpoint(folder).tensors())
    name = "model.layers.0.self_attn.k_proj.weight"
    read = [part[name] for part in parts(folder, 4)]
    assert [len(part) for part in read] == [8, 8, 8, 8]
    for rank, part in enumerate(read):
        head = rank // 2
        assert torch.equal(part, whole[name][8 * head : 8 * head + 8])


@pytest.mark.parametrize(
    ("shape", "size", "message"),
    [
        ({"heads": 4, "kv_heads": 2}, 3, "4 query heads .* on 1, 2, 4 ranks"),
        ({"heads": 6, "kv_heads": 3, "hidden": 48, "intermediate": 96}, 2, "3 key/value heads .* on 1, 3, 6 ranks"),
        ({"heads": 4, "kv_heads": 4, "intermediate": 126}, 4, "126 MLP columns .* on 1, 2 ranks"),
        ({"heads": 9, "kv_heads": 9, "head_dim": 8, "intermediate": 90, "vocab": 10}, 9, "vocabulary of 10"),
    ],
)
def test_models_that_cannot_be_split_are_refused(
    shape: dict[str, int], size: int, message: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(tmp_path, **shape)
    with pytest.raises(ConfigError, match=message) as caught:
        load_runner(ModelSettings(path=str(folder), tensor_parallel=size, kv_tokens=64))
    assert caught.value.param == "tensor_parallel"


def test_a_reduced_head_and_a_wrong_shape_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path)
    shard = shard_of(parse(open_checkpoint(folder)), 0, 2)
    with pytest.raises(CheckpointError, match="reduced head"):
        shard.cut("lm_head_ids", (12,))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(130, 64)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"up_proj.weight has shape \[130, 64\].*128 on axis 0"):
        parts(folder, 2)


def test_vocabulary_parts_cover_it_once(tmp_path: Path) -> None:
    config = parse(open_checkpoint(make_checkpoint(tmp_path, vocab=333)))
    ids = [token for rank in range(4) for token in Shard(config, rank, 4).vocabulary]
    assert ids == list(range(333))


def test_cores_are_divided_and_threads_are_per_rank() -> None:
    settings = ModelSettings(path="x", cores=(4, 5, 6, 7), tensor_parallel=2, rank_timeout_s=3)
    assert [settings.of_rank(rank).cores for rank in (0, 1)] == [(4, 5), (6, 7)]
    assert [settings.of_rank(rank).compute_threads for rank in (0, 1)] == [2, 2]
    assert settings.compute_threads == 2
    assert settings.of_rank(1).tensor_parallel == 1
    assert ModelSettings.model_validate_json(settings.of_rank(1).model_dump_json()) == settings.of_rank(1)
    assert ModelSettings(path="x", threads=3, tensor_parallel=2).of_rank(1).compute_threads == 3


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValidationError, match="3 cores cannot be divided among 2 ranks"):
        ModelSettings(path="x", cores=(0, 1, 2), tensor_parallel=2)
    with pytest.raises(ValidationError, match="rank_timeout_s needs tensor_parallel"):
        ModelSettings(path="x", rank_timeout_s=5)
    with pytest.raises(ValidationError, match="tensor_parallel is for targets"):
        DraftSettings(model=ModelSettings(path="x", tensor_parallel=2))
