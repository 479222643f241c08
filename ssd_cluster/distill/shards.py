"""Shards of collected text: tokens, document boundaries, and the target's top-m law at each position.

A shard is one safetensors file, written under another name and renamed, so a file that exists is whole; its metadata
holds a checksum of the tensors and the key of the settings that made it.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ssd_cluster.errors import SsdClusterError


class BadShard(SsdClusterError):
    """A shard is corrupt or belongs to other settings; the message says which file to delete."""

    code = "bad_shard"


OWN = "target"


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation.

    Attributes:
        tokens: [N] ids.
        law_ids: [N, m] ids of the target's most probable tokens *at* each position (given what stands before it).
        law_p: [N, m] their probabilities at temperature 1, descending.
        has_law: [N] False where no law was recorded (forced tokens such as the chat template's).
        source: who wrote it: ``OWN`` for the target itself, else the package that ships the text.
    """

    tokens: np.ndarray
    law_ids: np.ndarray
    law_p: np.ndarray
    has_law: np.ndarray
    source: str = OWN

    def __len__(self) -> int:
        return len(self.tokens)


def shard_path(folder: Path, index: int, kind: str = "shard") -> Path:
    """``kind``: "shard" for what the target wrote, "bulk" for text that it scored."""
    return folder / f"{kind}-{index:05d}.safetensors"


def _checksum(tensors: dict[str, torch.Tensor]) -> str:
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].contiguous().view(torch.uint8).numpy().tobytes(), crc)
    return f"{crc:08x}"


def write_shard(path: Path, documents: Iterable[Document], key: str) -> None:
    """Write one shard atomically.

    Raises:
        SsdClusterError: the disk is full or the folder cannot be written; nothing half-made is left.
    """
    documents = list(documents)
    tensors = {
        "tokens": torch.from_numpy(np.concatenate([d.tokens for d in documents]).astype(np.int32)),
        "law_ids": torch.from_numpy(np.concatenate([d.law_ids for d in documents]).astype(np.int32)),
        "law_p": torch.from_numpy(np.concatenate([d.law_p for d in documents]).astype(np.float16)),
        "has_law": torch.from_numpy(np.concatenate([d.has_law for d in documents]).astype(np.uint8)),
        "lengths": torch.tensor([len(d) for d in documents], dtype=torch.int32),
    }
    sources = json.dumps([document.source for document in documents])
    metadata = {"key": key, "checksum": _checksum(tensors), "sources": sources}
    partial = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata=metadata)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise SsdClusterError(
            f"cannot write {path}: {error}. Free space there and run the command again: finished shards are kept."
        ) from error


def read_shard(path: Path, key: str | None = None) -> list[Document]:
    """All documents of a shard.

    Raises:
        BadShard: the file is damaged, or made with other settings than ``key`` names.
    """
    try:
        with safe_open(path, framework="pt") as handle:
            metadata = handle.metadata() or {}
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise BadShard(f"{path} is damaged ({error}); delete it and run the command again") from error
    if key is not None and metadata.get("key") != key:
        raise BadShard(f"{path} was collected with other settings; delete it or choose another folder")
    if metadata.get("checksum") != _checksum(tensors):
        raise BadShard(f"{path} does not match its checksum; delete it and run the command again")
    ends = np.cumsum(tensors["lengths"].numpy())
    starts = np.concatenate([[0], ends[:-1]])
    tokens, law_ids, law_p = (tensors[name].numpy() for name in ("tokens", "law_ids", "law_p"))
    has_law = tensors["has_law"].numpy().astype(bool)
    sources = json.loads(metadata["sources"]) if "sources" in metadata else [OWN] * len(ends)
    return [
        Document(tokens[a:b], law_ids[a:b], law_p[a:b], has_law[a:b], source)
        for a, b, source in zip(starts, ends, sources, strict=True)
    ]
