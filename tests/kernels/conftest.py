"""Runs of the Triton kernels in the interpreter, which a process must choose before it imports them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def interpreted_checks() -> dict[str, Any]:
    """What differs between Triton and torch, by kernel and case."""
    return _interpreted("kernel_checks.py")


@pytest.fixture(scope="session")
def interpreted_philox() -> dict[str, Any]:
    """How Triton's noise compares with published vectors and the torch reference."""
    return _interpreted("philox_triton_check.py")


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
