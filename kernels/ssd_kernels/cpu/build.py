"""Compiling the C sources of this package with the system's compiler, once per source, compiler and processor."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ssd_kernels.backends import KernelUnavailable

FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
VERSION_S = 10.0
COMPILE_S = 120.0
_HERE = Path(__file__).parent
_SOURCES = ("rows.c", "attention.c", "int8.c", "tiles.c", "draws.c", "layers.c")
_HEADERS = ("vector.h", "tiles.h", "attention_tiles.h", "threads.h")


def build(folder: Path, compiler: str = "cc") -> Path:
    """The shared library in ``folder``, compiled now if this source, compiler and processor have none there yet.

    Processes may build at the same time: each writes a file of its own and renames it.

    Raises:
        KernelUnavailable: not Linux, no compiler, it fails, or the folder cannot be written.
    """
    if sys.platform != "linux":
        raise KernelUnavailable(f"the CPU kernels are built on Linux only, not on {sys.platform}")
    found = shutil.which(compiler)
    if found is None:
        raise KernelUnavailable(f"there is no C compiler ({compiler}) on the path")
    library = folder / f"cpu-kernels-{_fingerprint(found)}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="cpu-kernels-") as scratch:
            made = Path(scratch) / library.name
            _run([found, *FLAGS, "-o", str(made), *(str(_HERE / name) for name in _SOURCES)], COMPILE_S)
            os.replace(made, library)
    except OSError as error:
        raise KernelUnavailable(f"the CPU kernels cannot be kept in {folder}: {error}") from error
    return library


def _fingerprint(compiler: str) -> str:
    """Changes with everything that the compiled code depends on."""
    digest = hashlib.sha256()
    for name in (*_SOURCES, *_HEADERS):
        digest.update((_HERE / name).read_bytes())
    for part in (*FLAGS, _run([compiler, "--version"], VERSION_S), _processor()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _processor() -> str:
    """What Linux says about the first CPU: family, model and instruction sets."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            first = lines.read().split("\n\n")[0].splitlines()
    except OSError:
        return ""
    keys = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    return "\n".join(line for line in first if line.split("\t")[0].strip() in keys)


def _run(command: list[str], timeout_s: float) -> str:
    """Standard output of a command of the compiler."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelUnavailable(f"{command[0]} does not run: {error}") from error
    except subprocess.CalledProcessError as error:
        raise KernelUnavailable(f"{command[0]} failed: {error.stderr.strip()[-400:]}") from error
    return done.stdout
