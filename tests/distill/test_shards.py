"""Shards on disk: whole or absent, checked when read."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from ssd_cluster.distill.shards import BadShard, Document, read_shard, shard_path, write_shard
from ssd_cluster.errors import SsdClusterError


def documents(count: int = 3) -> list[Document]:
    rng = np.random.default_rng(0)
    return [
        Document(
            rng.integers(0, 300, n),
            rng.integers(0, 300, (n, 4)),
            rng.random((n, 4)).astype(np.float16),
            rng.random(n) < 0.5,
        )
        for n in range(2, 2 + count)
    ]


def test_round_trip(tmp_path: Path) -> None:
    path = shard_path(tmp_path / "new" / "folder", 3)
    write_shard(path, documents(), "key")
    found = read_shard(path, "key")
    assert [len(d) for d in found] == [2, 3, 4]
    for a, b in zip(found, documents(), strict=True):
        for name in ("tokens", "law_ids", "law_p", "has_law"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert [p.name for p in path.parent.iterdir()] == ["shard-00003.safetensors"]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    path = shard_path(tmp_path, 0)
    write_shard(path, documents(), "key")
    with pytest.raises(BadShard, match="other settings"):
        read_shard(path, "another")
    assert len(read_shard(path)) == 3


@pytest.mark.parametrize("damage", ["cut", "empty", "bit"])
def test_damage_is_found_and_named(tmp_path: Path, damage: str) -> None:
    path = shard_path(tmp_path, 0)
    write_shard(path, documents(), "key")
    content = bytearray(path.read_bytes())
    if damage == "bit":
        content[-3] ^= 4
    path.write_bytes({"cut": content[:-7], "empty": b"", "bit": content}[damage])
    with pytest.raises(BadShard, match=r"shard-00000.safetensors .*delete it"):
        read_shard(path, "key")


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    """The system refuses to let files grow beyond some bytes, as a full disk would."""
    write_shard(shard_path(tmp_path, 0), documents(), "key")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(SsdClusterError, match="finished shards are kept"):
            write_shard(shard_path(tmp_path, 1), documents(200), "key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in tmp_path.iterdir()] == ["shard-00000.safetensors"]
    assert len(read_shard(shard_path(tmp_path, 0), "key")) == 3
