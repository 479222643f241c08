"""Runs of Triton kernels in the interpreter, which a process must choose before its import; C for old processors."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ssd_kernels.cpu import CpuKernels
from support.compiled import compiled

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def interpreted_checks() -> dict[str, Any]:
    """What differs between Triton and torch, by kernel and case."""
    return _interpreted("kernel_checks.py")


@pytest.fixture(scope="session")
def interpreted_philox() -> dict[str, Any]:
    """How Triton's noise compares with published vectors and the torch reference."""
    return _interpreted("philox_triton_check.py")


@pytest.fixture(scope="session")
def older_processor(tmp_path_factory: pytest.TempPathFactory) -> CpuKernels:
    """The library as it is built for a processor without AVX, let alone instructions for int8."""
    compiled()
    if platform.machine() != "x86_64":
        pytest.skip("x86 only")
    folder = tmp_path_factory.mktemp("older")
    compiler = folder / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("cc")} "$@" -march=x86-64-v2 -O1\n')
    compiler.chmod(0o755)
    return CpuKernels(folder, str(compiler))


def _interpreted(script: str) -> dict[str, Any]:
    """The JSON report of a script of tests/support."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels"), str(ROOT / "tests")])
    run = subprocess.run(
        [sys.executable, str(ROOT / "tests/support" / script)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report
