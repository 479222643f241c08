"""The Triton kernels: run in the interpreter, compiled for CUDA without a device, run on CUDA where there is one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ssd_kernels.philox import exponential_noise, noise_words, philox4x32
from support import philox_oracle as oracle

pytest.importorskip("triton", reason="needs the package triton (extra dev or cuda)")


def test_published_vectors(interpreted_philox: dict[str, Any]) -> None:
    assert interpreted_philox["vectors"] is True


def test_tritons_own_philox_agrees(interpreted_philox: dict[str, Any]) -> None:
    assert interpreted_philox["library_vectors"] == [True, True, True]


def test_words_equal_the_reference_at_odd_and_real_vocabularies(interpreted_philox: dict[str, Any]) -> None:
    assert interpreted_philox["words"] == dict.fromkeys(("1", "3", "5", "1023", "2049", "49152", "151936"), True)
    assert interpreted_philox["no_rows"] == [0, 7]


def test_noise_within_tolerance_of_the_reference(interpreted_philox: dict[str, Any]) -> None:
    assert max(interpreted_philox["error"].values()) <= 5e-7


def test_uniform_at_both_ends_and_at_the_seam_of_the_series(interpreted_philox: dict[str, Any]) -> None:
    assert interpreted_philox["ends"] == pytest.approx(interpreted_philox["ends_reference"], rel=5e-7)
    assert interpreted_philox["ends"][0] == 2.0**-33


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("raw", [True, False])
def test_noise_kernel_compiles_for_cuda(capability: int, raw: bool) -> None:
    """Compilation needs no device; the interpreter accepts code that the compiler refuses."""
    import triton
    from ssd_kernels.philox import triton_kernel
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        triton_kernel.noise_kernel,
        signature={
            "rows_ptr": "*i64",
            "out_ptr": "*i64" if raw else "*fp32",
            "vocabulary": "i32",
            "RAW": "constexpr",
            "SIZE": "constexpr",
        },
        constexprs={"RAW": raw, "SIZE": triton_kernel.BLOCK},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert f".target sm_{capability}" in compiled.asm["ptx"]
    assert compiled.asm["cubin"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_words_equal_the_reference() -> None:
    counters, keys, words = (torch.tensor(column).cuda() for column in zip(*oracle.VECTORS, strict=True))
    assert torch.equal(philox4x32(counters, keys, backend="triton"), words)
    for vocabulary in (1, 5, 49152, 151936):
        row = ([5, -1], [2**32 - 1, 3], vocabulary)
        wanted = noise_words(*row, backend="torch")
        for backend in ("torch", "triton"):
            assert torch.equal(noise_words(*row, device="cuda", backend=backend).cpu(), wanted)
            noise = exponential_noise(*row, device="cuda", backend=backend).cpu()
            torch.testing.assert_close(noise, exponential_noise(*row), rtol=5e-7, atol=0)
