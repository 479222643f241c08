"""Faults of Ray around a pool, in a process of their own: parts of its Ray are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.faults.table import BEGIN, END

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TESTS = Path(__file__).parents[1]


def test_no_text_changes_and_a_killed_target_is_replaced(tmp_path: Path) -> None:
    document = tmp_path / "failures.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    command = [sys.executable, "-m", "support.faults", "--write", str(document)]
    command += ["--only", "controller-killed", "target-killed"]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    lines = document.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert len(rows) == 2 + 1
    assert [("the same text" in row, "error" in row) for row in rows[1:]] == [
        (True, False),
        (False, True),
    ]
