"""Compiles the Triton kernels for CUDA without a device; the interpreter accepts code that the compiler refuses."""

from __future__ import annotations

from typing import Any

F32, I64, I32 = "*fp32", "*i64", "i32"
STRIDES = dict.fromkeys(("P_sequence", "P_row", "Q_sequence", "Q_row"), I32)


KERNELS = (
    "log_rho",
    "mass",
    "block_stop",
    "token_stop",
    "residual",
    "sample",
    "sample_whole",
    "best",
    "saguaro_mass",
    "draw",
    "merge",
)


def kernels() -> dict[str, tuple[Any, dict[str, str], dict[str, Any]]]:
    """Every kernel by name: the function, the types of its arguments, its constants."""
    from ssd_kernels.coupled import triton_kernel as coupled
    from ssd_kernels.merge import triton_kernel as merge
    from ssd_kernels.packing import INFINITE, NOTHING
    from ssd_kernels.saguaro import triton_kernel as saguaro
    from ssd_kernels.verification import triton_kernel as verification

    chain = {"P_ptr": F32, "Q_ptr": F32, "x_ptr": I64}
    rows = {"P_ptr": F32, "Q_ptr": F32}
    sample = {"counters_ptr": I64, "temperature_ptr": F32, "peak_ptr": F32, "cut_ptr": F32, "last_ptr": I64}
    sample |= {"out_ptr": I64, "stride": I32, "vocabulary": I32}
    size, infinity = {"SIZE": 2048}, {"INFINITY_BITS": INFINITE}
    states = {"out_a_ptr": "*bf16", "lse_a_ptr": F32, "out_b_ptr": "*bf16", "lse_b_ptr": F32, "out_ptr": "*bf16"}
    return {
        "log_rho": (
            verification.log_rho_kernel,
            chain | {"n_ptr": I64, "out_ptr": F32} | STRIDES | {"g": I32},
            {"STEPS": 8},
        ),
        "mass": (
            verification.mass_kernel,
            rows | {"log_rho_ptr": F32, "n_ptr": I64, "out_ptr": F32} | STRIDES | {"g": I32, "vocabulary": I32},
            size,
        ),
        "block_stop": (
            verification.block_stop_kernel,
            {"log_rho_ptr": F32, "mass_ptr": F32, "u_ptr": F32, "n_ptr": I64, "kept_ptr": I64, "rho_ptr": F32}
            | {"g": I32, "blocks": I32},
            {"STEPS": 16, "BLOCKS": 64},
        ),
        "token_stop": (
            verification.token_stop_kernel,
            chain | {"u_ptr": F32, "n_ptr": I64, "kept_ptr": I64} | STRIDES | {"g": I32},
            {"STEPS": 1},
        ),
        "residual": (
            verification.residual_kernel,
            rows
            | {"E_ptr": F32, "n_ptr": I64, "kept_ptr": I64, "rho_ptr": F32, "out_ptr": I64}
            | STRIDES
            | {"vocabulary": I32},
            size | infinity,
        ),
        "sample": (
            coupled.sample_kernel,
            {"logits_ptr": "*bf16"} | sample,
            {"CUT": True, "SIZE": 256, "NOTHING": NOTHING},
        ),
        "sample_whole": (
            coupled.sample_kernel,
            {"logits_ptr": F32} | sample,
            {"CUT": False, "SIZE": 256, "NOTHING": NOTHING},
        ),
        "best": (saguaro.best_kernel, {"q_ptr": F32, "out_ptr": I64, "vocabulary": I32, "F": I32}, size),
        "saguaro_mass": (
            saguaro.mass_kernel,
            {"q_ptr": F32, "cut_ptr": I64, "out_ptr": F32, "vocabulary": I32, "C": "fp32"},
            size,
        ),
        "draw": (
            saguaro.draw_kernel,
            {"q_ptr": F32, "cut_ptr": I64, "total_ptr": F32, "E_ptr": F32, "sigma_ptr": F32, "out_ptr": I64}
            | {"vocabulary": I32, "C": "fp32"},
            size | infinity,
        ),
        "merge": (
            merge.merge_kernel,
            states | {"lse_ptr": F32, "n": I32, "D": I32},
            {"ROWS": 4, "SIZE": 64},
        ),
    }


def compile_for(name: str, capability: int) -> tuple[str, bytes]:
    """(PTX, cubin) of a kernel for one compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function, signature, constants = kernels()[name]
    types = signature | dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature={a: types[a] for a in function.arg_names}, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    return compiled.asm["ptx"], compiled.asm["cubin"]
