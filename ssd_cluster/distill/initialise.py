"""Stage 2: the untrained draft, cut from the target, with an output head over the most frequent tokens."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ssd_cluster.distill.settings import DraftShape
from ssd_cluster.distill.shards import Document
from ssd_cluster.errors import CheckpointError, SsdClusterError
from ssd_cluster.model.checkpoint import open_checkpoint
from ssd_cluster.model.cut import cut_checkpoint

HEAD = "lm_head.weight"
HEAD_IDS = "lm_head_ids"
EMBEDDING = "model.embed_tokens.weight"


def frequent_ids(documents: Sequence[Document], vocabulary: int, size: int, always: Sequence[int]) -> np.ndarray:
    """The ``size`` ids with the most mass in the target's recorded laws, and those of ``always``; ascending, [size].

    Raises:
        CheckpointError: the head would be larger than the vocabulary.
    """
    if size > vocabulary:
        raise CheckpointError(f"a head of {size} tokens is larger than the target's vocabulary of {vocabulary}")
    mass = np.zeros(vocabulary)
    for document in documents:
        rows = document.has_law
        np.add.at(mass, document.law_ids[rows].ravel(), document.law_p[rows].astype(np.float64).ravel())
    mass[list(always)] = np.inf
    order = np.lexsort((np.arange(vocabulary), -mass))
    return np.sort(order[:size])


def initialise(target: Path, out: Path, shape: DraftShape, head_ids: np.ndarray | None) -> Path:
    """Write the untrained draft to ``out``: the cut, and the rows of the target's head that ``head_ids`` names."""
    cut = cut_checkpoint(target, out.with_name(out.name + "-cut"), shape.layers)
    tensors = load_file(cut / "model.safetensors")
    config = json.loads((cut / "config.json").read_text(encoding="utf-8"))
    head = tensors.get(HEAD, tensors[EMBEDDING])
    if head_ids is not None:
        ids = torch.from_numpy(head_ids.astype(np.int64))
        head = head[ids]
        tensors[HEAD_IDS] = ids
    tensors[HEAD] = head.clone()
    config["tie_word_embeddings"] = False
    write_draft(cut, out, config, tensors)
    return out


def check_start(draft: Path, target: Path, shape: DraftShape) -> Path:
    """``draft``, if training can go on from it.

    Raises:
        CheckpointError: it has another shape, or embeddings that are not the target's.
    """
    checkpoint, origin = open_checkpoint(draft), open_checkpoint(target)
    tensors, embeddings = dict(checkpoint.tensors()), dict(origin.tensors())[EMBEDDING]
    head = len(tensors[HEAD]) if HEAD in tensors else 0
    wanted = shape.head or int(origin.config["vocab_size"])
    if checkpoint.config["num_hidden_layers"] != len(shape.layers) or head != wanted:
        raise CheckpointError(
            f"{draft} has {checkpoint.config['num_hidden_layers']} layers and a head of {head}, not "
            f"{len(shape.layers)} and {wanted}; shape.start must be a draft of the same shape"
        )
    if not torch.equal(tensors[EMBEDDING].float(), embeddings.to(tensors[EMBEDDING].dtype).float()):
        raise CheckpointError(f"{draft} was made from another target than {target}")
    return draft


def write_draft(like: Path, out: Path, config: dict[str, object], tensors: dict[str, torch.Tensor]) -> None:
    """Write a checkpoint folder with the tokenizer files of ``like``; its weights appear last, by a rename.

    Raises:
        SsdClusterError: the disk is full or the folder cannot be written; weights that were there are kept.
    """
    partial = out / "model.safetensors.part"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for file in like.iterdir():
            if file.name not in ("config.json", "model.safetensors") and file.is_file() and like != out:
                (out / file.name).write_bytes(file.read_bytes())
        save_file({k: v.contiguous() for k, v in tensors.items()}, partial, metadata={"format": "pt"})
        (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        partial.replace(out / "model.safetensors")
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise SsdClusterError(
            f"cannot write {out}: {error}. Free space and run the command again: what was finished is kept."
        ) from error
