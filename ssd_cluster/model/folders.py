"""Folders that appear whole or not at all: built beside their place, renamed at the end, by one builder at a time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ssd_cluster.errors import CheckpointError

_POLL_S = 0.2


def build_folder(
    out: Path, build: Callable[[Path], None], *, deadline_s: float, waiting: Callable[[], None] | None = None
) -> Path:
    """Return ``out``, calling ``build`` on an empty folder beside it first if ``out`` does not exist.

    Processes that want the same folder take turns; what an interrupted builder left behind is removed.

    Args:
        out: the final folder.
        build: fills the folder it is given; may raise, then nothing is kept.
        deadline_s: longest wait for another process that is building.
        waiting: called once if another process is building.

    Raises:
        CheckpointError: the other builder did not finish in time, or the place cannot be written.
    """
    if out.exists():
        return out
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with _lock(out.parent / f".{out.name}.lock", deadline_s, waiting):
            if not out.exists():
                _build_and_rename(out, build)
    except OSError as error:
        raise CheckpointError(
            f"{out} cannot be written ({error.strerror or error}); free space or point SSD_CLUSTER_CACHE elsewhere"
        ) from error
    return out


def _build_and_rename(out: Path, build: Callable[[Path], None]) -> None:
    prefix = f".{out.name}.tmp-"
    for leftover in out.parent.glob(f"{prefix}*"):  # only the holder of the lock builds, so nobody is using these
        shutil.rmtree(leftover, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent))
    try:
        build(partial)
        partial.chmod(0o755)
        _sync(partial)
        os.rename(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Write the files through, so that a folder that exists after a power failure is a whole one."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())


@contextmanager
def _lock(path: Path, deadline_s: float, waiting: Callable[[], None] | None) -> Iterator[None]:
    """Hold an advisory lock, which the system releases even if this process is killed."""
    give_up = time.monotonic() + deadline_s
    told = False
    with path.open("w") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise CheckpointError(
                        f"another process has been preparing the model for {deadline_s:.0f} s (lock {path}); "
                        "wait for it or stop it, then try again"
                    ) from None
                if waiting is not None and not told:
                    waiting()
                    told = True
                time.sleep(_POLL_S)
        yield
