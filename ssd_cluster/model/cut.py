"""Make a small model of the same vocabulary from a big one: keep some layers, the final norm and the head."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import Checkpoint, open_checkpoint, read_json
from ssd_cluster.model.folders import build_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_MARK = "ssd_cluster_cut"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def cut_checkpoint(source: Path, out: Path, layers: Sequence[int], *, deadline_s: float = 600.0) -> Path:
    """Write a checkpoint that keeps ``layers`` of ``source`` in their order; the folder appears whole or not at all.

    Calling it again with the same arguments returns at once.

    Args:
        source: Hugging Face folder or .gguf file.
        out: folder to create.
        layers: indices of the layers to keep, ascending.
        deadline_s: longest wait for another process that is writing the same folder.

    Raises:
        CheckpointError: the source is broken, the layers do not exist, or ``out`` holds something else.
    """
    checkpoint = open_checkpoint(source)
    kept = _checked(layers, int(checkpoint.config["num_hidden_layers"]))
    mark = {"source": checkpoint.hash, "layers": kept}
    build_folder(out, lambda folder: _write(checkpoint, folder, kept, mark), deadline_s=deadline_s)
    if not (out / "config.json").exists() or read_json(out / "config.json").get(_MARK) != mark:
        raise CheckpointError(f"{out} exists and is not this cut of {source}; delete it or give another folder")
    return out


def _checked(layers: Sequence[int], available: int) -> list[int]:
    kept = [int(layer) for layer in layers]
    if not kept or kept != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= available:
        raise CheckpointError(f"layers to keep must be ascending and within 0..{available - 1}, not {kept}")
    return kept


def _write(checkpoint: Checkpoint, folder: Path, kept: list[int], mark: dict[str, Any]) -> None:
    config = dict(checkpoint.config, num_hidden_layers=len(kept)) | {_MARK: mark}
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = [config["layer_types"][layer] for layer in kept]
    if "max_window_layers" in config:
        config["max_window_layers"] = sum(layer < config["max_window_layers"] for layer in kept)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in checkpoint.tensors():
        new_name = _renamed(name, kept)
        if new_name is not None:
            tensors[new_name] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    if checkpoint.generation_config:
        text = json.dumps(checkpoint.generation_config, indent=2)
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
    copy_tokenizer(checkpoint.path, folder)


def _renamed(name: str, kept: list[int]) -> str | None:
    """The tensor's name in the cut, or None if its layer is dropped."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return name
    layer = int(match[1])
    return f"model.layers.{kept.index(layer)}.{match[2]}" if layer in kept else None


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Put the tokenizer files of a checkpoint (folder or .gguf) into ``folder``."""
    if source.suffix == ".gguf":
        from ssd_cluster.model.gguf import GgufFile
        from ssd_cluster.model.gguf_tokenizer import tokenizer_from_gguf

        save_tokenizer(tokenizer_from_gguf(GgufFile(source)), folder)
        return
    for name in _TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer files in a form that older releases of transformers read too."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = read_json(path)
    config.pop("backend", None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
