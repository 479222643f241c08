"""Every Triton kernel against its torch reference, on any device; a script for the interpreter (TRITON_INTERPRET=1).

A check returns what differs, by case; {} means equal (tokens in every case, numbers within the rounding of float32).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import torch
from ssd_kernels.coupled import coupled_sample
from ssd_kernels.merge import merge_state
from ssd_kernels.saguaro import saguaro_sample
from ssd_kernels.truncation import support_cut
from ssd_kernels.verification import block_verify, token_verify

from support.kernel_cases import chains, exponential, laws

Report = dict[str, Any]


def size_blocks(V: int, device: str) -> None:
    """In the interpreter, whose cost is per program: few blocks for the real vocabularies, several for small ones."""
    if device == "cpu":
        from ssd_kernels.coupled import triton_kernel as coupled
        from ssd_kernels.saguaro import triton_kernel as saguaro
        from ssd_kernels.verification import triton_kernel as verification

        large = V > 10_000
        verification.BLOCK = saguaro.BLOCK = 32768 if large else 1024
        coupled.BLOCK = 8192 if large else 256


def check_verification(rule: Callable[..., Any], device: str) -> Report:
    report: Report = {}
    for name, case in chains():
        size_blocks(case[0].shape[-1], device)
        wanted = [t.tolist() for t in rule(*case, backend="torch")]
        actual = [t.tolist() for t in rule(*(t.to(device) for t in case), backend="triton")]
        if actual != wanted:
            report[name] = {"triton": actual, "torch": wanted}
    return report


def check_block(device: str) -> Report:
    return check_verification(block_verify, device)


def check_token(device: str) -> Report:
    return check_verification(token_verify, device)


def check_strided(device: str) -> Report:
    """Rows that are a slice of something larger: the kernels follow strides, they copy nothing."""
    P, Q, *rest = next(case for name, case in chains() if name.startswith("(5, 15, 130)"))
    wide = torch.full((5, 40, 300), 0.5)
    wide[:, 3:19, 7:137] = P
    arguments = [t.to(device) for t in rest]
    report: Report = {}
    for rule in (block_verify, token_verify):
        actual = rule(wide.to(device)[:, 3:19, 7:137], Q.to(device), *arguments, backend="triton")
        wanted = rule(P, Q, *rest, backend="torch")
        if [t.tolist() for t in actual] != [t.tolist() for t in wanted]:
            report[rule.__name__] = [t.tolist() for t in actual]
    return report


SAMPLED = [1, 3, 130, 1023, 2049, 49152, 151936]


def check_coupled(device: str) -> Report:
    """Several positions at once, all kinds of temperature, with and without cuts, bfloat16 and float32 logits."""
    report: Report = {}
    for V in SAMPLED:
        size_blocks(V, device)
        R = 5 if V < 10_000 else 3
        logits = torch.randn(R, V, generator=torch.Generator().manual_seed(V)) * 3
        temperature = [1.0, 0.0, 0.05, 0.7, 1.5][:R]
        seeds, positions, rounds = [3, -4, 2**63, 5, 5][:R], [0, 7, 2**32 - 1, 8, 9][:R], [0, 1, 2**32 - 1, 0, 5][:R]
        cut = support_cut(logits, temperature, [5, 0, 40, 0, 9][:R], [0, 0, 0, 0.1, 0][:R], [1, 1, 0.9, 1, 0.5][:R])
        logits[0, 0] = -math.inf
        for name, rows, end in (("whole", logits, None), ("cut", logits, cut), ("bfloat16", logits.bfloat16(), None)):
            wanted = coupled_sample(
                rows, temperature, seeds, positions, domain=1, rounds=rounds, cut=end, backend="torch"
            )
            there = end if end is None else type(end)(end.value.to(device), end.last.to(device))
            actual = coupled_sample(
                rows.to(device), temperature, seeds, positions, domain=1, rounds=rounds, cut=there, backend="triton"
            )
            if actual.tolist() != wanted.tolist():
                report[f"{V} {name}"] = {"triton": actual.tolist(), "torch": wanted.tolist()}
    return report


def check_coupled_edges(device: str) -> Report:
    """NaN, infinite and banned rows, ties, zeros of both signs."""
    rows = torch.zeros(6, 2049)
    rows[0, 7] = math.nan
    rows[1, 3] = math.inf
    rows[2] = -math.inf
    rows[3, :2048] = -math.inf
    rows[4] = -5.0
    rows[5, 1:] = -0.0
    arguments = ([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], [1] * 6, [2] * 6)
    actual = coupled_sample(rows.to(device), *arguments, backend="triton").tolist()
    return {} if actual == [-1, -1, -1, 2048, 0, 0] else {"edges": actual}


def check_saguaro(device: str) -> Report:
    report: Report = {}
    for V in (1, 7, 1023, 2049, 49152, 151936):
        size_blocks(V, device)
        R = 3 if V < 10_000 else 1
        gen = torch.Generator().manual_seed(V)
        q, E = laws(R, V, gen=gen), exponential(R, V, gen=gen)
        q[0] = (q[0] * 20).round() / 20 if V < 10_000 else q[0]  # ties and zeros
        for F, C in ((0, 0.5), (3, 0.0), (9, 0.3)):
            wanted, token = saguaro_sample(q, F, C, E, backend="torch")
            sigma, drawn = saguaro_sample(q.to(device), F, C, E.to(device), backend="triton")
            error = float((sigma.cpu() - wanted).abs().nan_to_num(0).max())
            support = torch.equal(sigma.cpu() > 0, wanted > 0)
            if drawn.tolist() != token.tolist() or error > 1e-6 or not support:
                report[f"{V} F={F} C={C}"] = {"error": error, "support": support, "drawn": drawn.tolist()}
    return report


def check_merge(device: str) -> Report:
    report: Report = {}
    for shape in ((1, 1, 1), (5, 3, 20), (2, 7, 4, 64), (9, 2, 128), (0, 2, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            gen = torch.Generator().manual_seed(len(shape))
            a, b = (torch.randn(shape, generator=gen).to(dtype) for _ in range(2))
            la, lb = (torch.randn(shape[:-1], generator=gen) * 5 for _ in range(2))
            if la.numel() > 1:
                la[0], a[0], lb[0, 0] = -math.inf, math.nan, -math.inf
            wanted = merge_state(a, la, b, lb, backend="torch")
            actual = merge_state(*(t.to(device) for t in (a, la, b, lb)), backend="triton")
            for got, want, tolerance in zip(
                actual, wanted, (1e-6 if dtype == torch.float32 else 1e-2, 2e-6), strict=True
            ):
                if not torch.allclose(got.cpu().float(), want.float(), rtol=tolerance, atol=tolerance):
                    report[f"{shape} {dtype}"] = float((got.cpu().float() - want.float()).abs().max())
    return report


CHECKS = {
    "block": check_block,
    "token": check_token,
    "strided": check_strided,
    "coupled": check_coupled,
    "coupled_edges": check_coupled_edges,
    "saguaro": check_saguaro,
    "merge": check_merge,
}


def main() -> None:
    torch.set_num_threads(1)
    report = {name: check("cpu") for name, check in CHECKS.items()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
