"""Compiling the CPU kernels: once, safely, and with one clear error where it cannot be done."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ssd_kernels.backends import KernelUnavailable
from ssd_kernels.cpu import CpuKernels, build
from support.compiled import compiled

VERSION = 'case "$1" in --version) echo "a compiler 1.0"; exit 0;; esac\n'


def compiler(folder: Path, script: str) -> str:
    """A stand-in for the system's compiler."""
    folder.mkdir(exist_ok=True)
    path = folder / "compiler"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def writing(log: Path) -> str:
    """A compiler that writes what it is asked for, slowly, and notes that it ran."""
    return f'{VERSION}echo run >> {log}\nwhile [ "$1" != "-o" ]; do shift; done\nsleep 0.2\necho code > "$2"\n'


def test_what_is_built_loads(tmp_path: Path) -> None:
    compiled()  # or skip
    library = build(tmp_path)
    CpuKernels(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [library.name]


def test_compiled_once_per_compiler(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first, second = (compiler(tmp_path / name, writing(log) + f"# {name}") for name in "ab")
    cache = tmp_path / "new" / "cache"
    assert build(cache, first) == build(cache, first)
    assert log.read_text().count("run") == 1
    Path(second).write_text(Path(second).read_text().replace("1.0", "1.1"))
    assert build(cache, second) != build(cache, first)
    assert log.read_text().count("run") == 2


def test_several_builders_at_once_leave_one_library(tmp_path: Path) -> None:
    fake = compiler(tmp_path / "bin", writing(tmp_path / "log"))
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(4) as pool:
        built = set(pool.map(lambda _: build(cache, fake), range(4)))
    assert list(cache.iterdir()) == list(built)
    assert built.pop().read_text() == "code\n"


def test_no_compiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelUnavailable, match=r"no C compiler \(no-such-compiler\) on the path"):
        build(tmp_path, "no-such-compiler")


def test_a_failing_compiler_is_quoted_and_leaves_nothing(tmp_path: Path) -> None:
    fake = compiler(tmp_path / "bin", VERSION + "echo 'vector.h:1: what is this' >&2\nexit 1\n")
    with pytest.raises(KernelUnavailable, match=r"failed: vector.h:1: what is this"):
        build(tmp_path / "cache", fake)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fake = compiler(tmp_path / "bin", writing(tmp_path / "log"))
    with pytest.raises(KernelUnavailable, match=r"cannot be kept in .*file/cache"):
        build(tmp_path / "file" / "cache", fake)


def test_a_broken_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Path(compiler(tmp_path / "bin", writing(tmp_path / "log")))
    fake.rename(fake.parent / "cc")
    monkeypatch.setenv("PATH", str(fake.parent), prepend=os.pathsep)
    with pytest.raises(KernelUnavailable, match="do not load"):
        CpuKernels(tmp_path)
