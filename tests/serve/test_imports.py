"""Checks come before heavy imports: a refusal must not take seconds."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_imports_neither_ray_nor_torch() -> None:
    code = "import sys, ssd_cluster.serve.local; print(sorted({'ray', 'torch', 'grpc'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
