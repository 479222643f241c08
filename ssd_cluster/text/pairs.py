"""Whether two checkpoints belong together, found out before either model is loaded."""

from __future__ import annotations

from pathlib import Path

from ssd_cluster.errors import PairMismatch
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.text.tokenizer import Tokenizer, compare

_FILES = ("tokenizer.json", "tokenizer_config.json")


def require_same_ids(target: str, draft: str) -> None:
    """Check that token ids mean the same to a target and a draft, given as anything that names a checkpoint.

    Raises:
        PairMismatch: they do not; the message names the first difference.
        CheckpointError: a checkpoint is missing, or its tokenizer cannot be read.
    """
    folders = resolve_checkpoint(target, weights=False), resolve_checkpoint(draft, weights=False)
    if _same_files(*folders):
        return
    difference = compare(*map(Tokenizer.load, folders))
    if difference is not None:
        raise PairMismatch(f"{draft} cannot draft for {target}: {difference}")


def _same_files(a: Path, b: Path) -> bool:
    """Equal files need no look at what they mean, and no library that reads them."""
    pairs = [(a / name, b / name) for name in _FILES]
    return all(x.is_file() and y.is_file() and x.read_bytes() == y.read_bytes() for x, y in pairs)
