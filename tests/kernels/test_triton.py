"""The Triton kernels of ratio mode: equal to the references in the interpreter, compiled for CUDA without a device."""

from __future__ import annotations

from typing import Any

import pytest
from support.kernel_checks import CHECKS
from support.triton_compile import KERNELS, compile_for

pytest.importorskip("triton", reason="needs the package triton (extra dev or cuda)")


@pytest.mark.parametrize("name", CHECKS)
def test_equals_the_reference(name: str, interpreted_checks: dict[str, Any]) -> None:
    assert interpreted_checks[name] == {}


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("name", KERNELS)
def test_compiles_for_cuda(name: str, capability: int) -> None:
    ptx, cubin = compile_for(name, capability)
    assert f".target sm_{capability}" in ptx
    assert cubin
