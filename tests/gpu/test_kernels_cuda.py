"""The kernels on a CUDA device: equal to the torch references, FlashInfer's operations by law; times are printed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from ssd_kernels.coupled import coupled_sample
from ssd_kernels.merge import merge_state
from ssd_kernels.saguaro import saguaro_sample
from ssd_kernels.truncation import renormalise
from ssd_kernels.verification import block_verify, chain_verify, token_verify
from support.kernel_cases import exponential, laws
from support.kernel_checks import CHECKS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")
needs_flashinfer = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="needs the package flashinfer-python (extra cuda)"
)


@needs_triton
@pytest.mark.parametrize("name", CHECKS)
def test_triton_equals_the_reference(name: str) -> None:
    assert CHECKS[name]("cuda") == {}


@needs_flashinfer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_flashinfer_merges_as_the_reference_does(dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(0)
    a, b = (torch.randn(33, 4, 128, generator=gen).to("cuda", dtype) for _ in range(2))
    la, lb = (torch.randn(33, 4, generator=gen).cuda() * 5 for _ in range(2))
    la[0], a[0] = -torch.inf, torch.nan
    for actual, wanted in zip(
        merge_state(a, la, b, lb, backend="flashinfer"), merge_state(a, la, b, lb, backend="torch"), strict=True
    ):
        torch.testing.assert_close(actual, wanted, rtol=1e-2, atol=1e-2)


@needs_flashinfer
def test_flashinfer_renormalises_as_the_reference_does_where_nothing_ties() -> None:
    law = laws(4, 49152, gen=torch.Generator().manual_seed(1)).cuda()
    cuts = ([0, 50, 1, 49152], [0.9, 1.0, 0.5, 0.7])
    actual, wanted = (renormalise(law, *cuts, backend=backend) for backend in ("flashinfer", "torch"))
    # The sum at which top_p stops is rounded differently: one id at the edge may differ.
    assert ((actual > 0) != (wanted > 0)).sum(-1).max() <= 1
    torch.testing.assert_close(actual, wanted, rtol=1e-3, atol=1e-6)


@needs_flashinfer
def test_flashinfers_chain_has_the_law_of_the_token_rule() -> None:
    """(kept, next) of many equal chains of ragged length, FlashInfer's own noise against given noise."""
    n, V, g = 60_000, 5, 2
    gen = torch.Generator().manual_seed(2)
    P, Q = laws(1, g + 1, V, gen=gen).expand(n, -1, -1), laws(1, g, V, gen=gen).expand(n, -1, -1)
    x = torch.multinomial(Q.flatten(0, 1), 1, generator=gen).view(n, g)
    lengths = torch.arange(n) % 3
    case = [t.cuda() for t in (P, Q, x, lengths)]
    noise = (torch.rand(n, g, generator=gen).cuda(), exponential(n, V, gen=gen).cuda())
    kept, following = chain_verify(*case, generator=torch.Generator("cuda").manual_seed(3))
    wanted_kept, wanted_following = token_verify(*case, *noise)
    for length in range(3):
        rows = lengths == length
        outcome = [k[rows.cuda()] * V + y[rows.cuda()] for k, y in ((kept, following), (wanted_kept, wanted_following))]
        observed, expected = (torch.bincount(o, minlength=(length + 1) * V).cpu().double() for o in outcome)
        both = observed + expected
        statistic = ((observed - expected) ** 2 / both)[both > 0].sum()
        # Two samples of one law: chi-square with as many degrees of freedom as occupied cells less one.
        assert statistic < chi_square_limit(int((both > 0).sum()) - 1)


def chi_square_limit(degrees: int) -> float:
    """Exceeded by chance once in a thousand."""
    from scipy.stats import chi2

    return float(chi2.ppf(0.999, degrees))


@needs_triton
def test_coupled_draws_follow_the_law_on_cuda() -> None:
    n = 50_000
    logits = torch.randn(1, 6, generator=torch.Generator().manual_seed(4)).cuda().expand(n, -1)
    drawn = coupled_sample(logits, [0.8] * n, [11] * n, list(range(n)))
    observed = torch.bincount(drawn, minlength=6).cpu().double()
    expected = n * torch.softmax(logits[0] / 0.8, -1).cpu().double()
    assert chisquare(observed.numpy(), (expected * n / expected.sum()).numpy())[1] > 1e-3


@pytest.mark.parametrize("V", [49152, 151936])
def test_every_backend_runs_at_the_size_of_a_round(V: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight sequences, seven drafted tokens; the table of times is for the reader, nothing is asserted about it."""
    B, g = 8, 7
    gen = torch.Generator().manual_seed(V)
    P, Q = laws(B, g + 1, V, gen=gen).cuda(), laws(B, g, V, gen=gen).cuda()
    x = torch.randint(0, V, (B, g), generator=gen).cuda()
    n = torch.full((B,), g).cuda()
    u, E = torch.rand(B, g, generator=gen).cuda(), exponential(B, V, gen=gen).cuda()
    logits, positions = P.flatten(0, 1).log(), list(range(B * (g + 1)))
    a, lse = torch.randn(B * 24, 32, 128).bfloat16().cuda(), torch.randn(B * 24, 32).cuda()
    backends = ["torch"] + ["triton"] * (importlib.util.find_spec("triton") is not None)
    calls: dict[str, Callable[[str], Any]] = {
        "block_verify": lambda backend: block_verify(P, Q, x, n, u, E, backend=backend),
        "token_verify": lambda backend: token_verify(P, Q, x, n, u, E, backend=backend),
        "coupled_sample": lambda backend: coupled_sample(
            logits, [1.0] * len(logits), [5] * len(logits), positions, backend=backend
        ),
        "saguaro_sample": lambda backend: saguaro_sample(P[:, 0], 8, 0.5, E, backend=backend),
        "merge_state": lambda backend: merge_state(a, lse, a, lse, backend=backend),
    }
    for name, call in calls.items():
        times = {backend: milliseconds(lambda call=call, backend=backend: call(backend)) for backend in backends}
        with capsys.disabled():
            print(f"\nV {V} {name}: " + ", ".join(f"{backend} {ms:.3f} ms" for backend, ms in times.items()), end="")
        results = [call(backend) for backend in backends]
        for result in results[1:]:
            torch.testing.assert_close(result, results[0], rtol=1e-2, atol=1e-6)


def milliseconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """Mean time on the device, compilation and first use left out."""
    for _ in range(3):
        call()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / repeats
