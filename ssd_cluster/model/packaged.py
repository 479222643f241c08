"""Drafts in the form in which they are shipped: int8 weights without what is the target's anyway.

One file holds the layers and the head, each matrix as int8 with a scale per output channel, and the target ids of the
head's columns. Input embeddings and tokenizer are taken from the target when a checkpoint is made of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import Checkpoint, open_checkpoint
from ssd_cluster.model.cut import copy_tokenizer

WEIGHTS = "draft.safetensors"
EMBEDDING = "model.embed_tokens.weight"
SCALE = ".scale"
_LEVELS = 127


def pack_draft(draft: Path, target: Path, out: Path) -> None:
    """Write the shipped form of the checkpoint folder ``draft`` into the folder ``out``: config.json and one file.

    Raises:
        CheckpointError: the draft's embeddings are not the target's, or the folder cannot be written.
    """
    checkpoint, origin = open_checkpoint(draft), open_checkpoint(target)
    packed: dict[str, torch.Tensor] = {}
    for name, tensor in checkpoint.tensors():
        if name == EMBEDDING:
            if not torch.equal(tensor.to(torch.bfloat16), _embedding(origin)):
                raise CheckpointError(f"{draft} has embeddings of its own, not {target}'s; it cannot be packed")
        elif tensor.dim() == 2:
            packed[name], packed[name + SCALE] = quantise(tensor)
        else:
            packed[name] = tensor if tensor.dtype == torch.int64 else tensor.to(torch.bfloat16)
    try:
        out.mkdir(parents=True, exist_ok=True)
        partial = out / (WEIGHTS + ".part")
        save_file({k: v.contiguous() for k, v in packed.items()}, partial, metadata={"target": content_hash(origin)})
        (out / "config.json").write_text(json.dumps(checkpoint.config, indent=2) + "\n", encoding="utf-8")
        partial.chmod(0o644)  # safetensors writes for the owner alone; packages are read by all
        partial.replace(out / WEIGHTS)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written ({error.strerror or error})") from error


def unpack_draft(packed: Path, target: Path, folder: Path) -> None:
    """Fill ``folder`` with a checkpoint (bfloat16) made of the shipped form in ``packed`` and of ``target``.

    Raises:
        CheckpointError: the file is damaged, or the target is not the one that the draft was made for.
    """
    from safetensors import SafetensorError, safe_open

    origin = open_checkpoint(target)
    try:
        with safe_open(str(packed / WEIGHTS), framework="pt") as reader:
            wanted = (reader.metadata() or {}).get("target")
            stored = {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{packed / WEIGHTS} is damaged ({error}); install the package again") from error
    found = content_hash(origin)
    if wanted != found:
        raise CheckpointError(
            f"the draft in {packed} was made for a target whose weights have hash {wanted}, {target} has {found}: "
            "make one for this target with `ssd-cluster distill`"
        )
    tensors = {
        name: dequantise(tensor, stored[name + SCALE]) if name + SCALE in stored else tensor
        for name, tensor in stored.items()
        if not name.endswith(SCALE)
    }
    tensors[EMBEDDING] = _embedding(origin)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(packed / "config.json", folder / "config.json")
    if origin.generation_config:
        text = json.dumps(origin.generation_config, indent=2)
        (folder / "generation_config.json").write_text(text, encoding="utf-8")
    copy_tokenizer(target, folder)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """([out, in] int8, [out, 1] float32) with weight ~ int8 * scale; the largest value of a row becomes 127."""
    exact = weight.float()
    scale = exact.abs().amax(1, keepdim=True).clamp_min(1e-12) / _LEVELS
    return (exact / scale).round().to(torch.int8), scale


def dequantise(levels: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """[out, in] bfloat16."""
    return (levels.float() * scale).to(torch.bfloat16)


def is_packed(folder: Path) -> bool:
    """Whether ``folder`` holds a shipped draft."""
    return (folder / WEIGHTS).exists()


def draft_hash(folder: Path) -> str:
    """Sixteen hex digits that name the shipped draft in ``folder``."""
    with (folder / WEIGHTS).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def content_hash(checkpoint: Checkpoint) -> str:
    """Sixteen hex digits over all weights as bfloat16, by name: the same however the files are laid out."""
    digests = {
        name: hashlib.sha256(tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, tensor in checkpoint.tensors()
    }
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:16]


def _embedding(target: Checkpoint) -> torch.Tensor:
    for name, tensor in target.tensors():
        if name == EMBEDDING:
            return tensor.to(torch.bfloat16)
    raise CheckpointError(f"{target.path} has no {EMBEDDING}")
