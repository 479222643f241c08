"""The compiled attention against attention written out in float64, and rows against the same rows alone."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from ssd_kernels.cpu import CpuKernels, PagedAttention, Rows
from support.compiled import compiled

BLOCK, BLOCKS, DEPTH, TAILS = 8, 40, 5, 12
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
HEADS = [(6, 2, 16), (9, 3, 64), (4, 4, 48), (7, 1, 32), (8, 2, 80)]


@dataclass
class Case:
    """Memory of two layers, and queries, keys and values as slices of one projection."""

    pages: torch.Tensor
    tails: torch.Tensor
    q: torch.Tensor
    kv: torch.Tensor

    def run(self, spans: list[Rows], layer: int = 1, kernels: CpuKernels | None = None) -> torch.Tensor:
        H = self.q.shape[1]
        out = torch.full((len(self.q), H * self.q.shape[2]), 7.0, dtype=self.q.dtype)
        attention = PagedAttention(kernels or compiled(), spans, self.pages, BLOCK, self.tails, H)
        attention.attend(layer, self.q, self.kv, out)
        return out


def case(H: int, G: int, D: int, n: int, dtype: torch.dtype) -> Case:
    generator = torch.Generator().manual_seed(H * D + n)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    heads = random(n, H + 2 * G, D).to(dtype)
    pages, tails = random(2, BLOCKS * BLOCK, 2, G, D).to(dtype), random(2, TAILS * DEPTH, 2, G, D)
    return Case(pages, tails, heads[:, :H], heads[:, H:].view(n, 2, G, D))


def table(n: int, seed: int = 0) -> list[int]:
    """``n`` scattered blocks."""
    return torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed))[:n].tolist()


def causal(first: int, start: int, n: int, blocks: list[int]) -> Rows:
    slots = [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(start, start + n)]
    return Rows(first, blocks, range(start + 1, start + n + 1), slots)


def tree(first: int, visible: list[int], tails: list[int], depths: list[int], blocks: list[int]) -> Rows:
    firsts = [tail * DEPTH for tail in tails]
    slots = [start + depth for start, depth in zip(firsts, depths, strict=True)]
    return Rows(first, blocks, visible, slots, firsts, [depth + 1 for depth in depths])


def written_out(given: Case, span: Rows, row: int, layer: int) -> torch.Tensor:
    """[H * D] float64: row ``row`` of a span over everything it sees, memory as it is after the forward."""
    seen = range(span.visible[row])
    entries = given.pages[layer, [span.table[p // BLOCK] * BLOCK + p % BLOCK for p in seen]].double()
    if span.tails is not None and span.own is not None:
        own = given.tails[layer, span.tails[row] : span.tails[row] + span.own[row]].double()
        entries = torch.cat([entries, own])
    q = given.q[span.first + row].double()
    keys, values = (entries[:, part].repeat_interleave(len(q) // entries.shape[2], dim=1) for part in (0, 1))
    weights = (torch.einsum("hd,lhd->hl", q, keys) * q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("hl,lhd->hd", weights, values).flatten()


def spans_of(length: int) -> list[Rows]:
    """Nine rows: a causal span, a tree and a single row, around ``length`` positions."""
    return [
        causal(0, length - 3, 4, table(20)),
        tree(4, [length, max(1, length - 70), length + 1, 1], [3, 9, 0, 7], [0, 4, 2, 1], table(20, seed=1)),
        causal(8, length + 9, 1, table(21, seed=2)),
    ]


@DTYPES
@pytest.mark.parametrize(("H", "G", "D"), HEADS)
@pytest.mark.parametrize("length", [3, 31, 64, 143])
def test_rows_equal_attention_written_out(H: int, G: int, D: int, length: int, dtype: torch.dtype) -> None:
    given = case(H, G, D, 9, dtype)
    spans = spans_of(length)
    out = given.run(spans)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-2
    for span in spans:
        for row in range(len(span.visible)):
            expected = written_out(given, span, row, 1)
            torch.testing.assert_close(out[span.first + row].double(), expected, rtol=tolerance, atol=tolerance)


@DTYPES
@pytest.mark.parametrize(("H", "G", "D"), HEADS)
def test_a_row_does_not_depend_on_the_rows_beside_it(H: int, G: int, D: int, dtype: torch.dtype) -> None:
    for length in (3, 64, 143):
        given = case(H, G, D, 9, dtype)
        spans = spans_of(length)
        together = given.run(spans)
        for span in spans:
            for row in range(len(span.visible)):
                part = slice(row, row + 1)
                tails = None if span.tails is None else span.tails[part]
                own = None if span.own is None else span.own[part]
                alone = Rows(span.first + row, span.table, span.visible[part], span.slots[part], tails, own)
                assert torch.equal(given.run([alone])[span.first + row], together[span.first + row])


@DTYPES
@pytest.mark.parametrize(("H", "G", "D"), HEADS)
def test_many_rows_of_one_tree(H: int, G: int, D: int, dtype: torch.dtype) -> None:
    """More query rows than two tiles hold, the last tile partly filled."""
    given = case(H, G, D, TAILS, dtype)
    tails, depths = [(7 * i) % TAILS for i in range(TAILS)], [i % DEPTH for i in range(TAILS)]
    span = tree(0, [100 + 5 * i for i in range(TAILS)], tails, depths, table(20))
    out = given.run([span])
    tolerance = 2e-6 if dtype == torch.float32 else 1e-2
    for row in range(TAILS):
        expected = written_out(given, span, row, 1)
        torch.testing.assert_close(out[row].double(), expected, rtol=tolerance, atol=tolerance)
        alone = tree(row, [span.visible[row]], [tails[row]], [depths[row]], table(20))
        assert torch.equal(given.run([alone])[row], out[row])


@pytest.mark.parametrize(("H", "G", "D"), [(9, 3, 64), (7, 1, 32)])
def test_without_tiles_bfloat16_gives_the_same_but_for_rounding(H: int, G: int, D: int) -> None:
    kernels = compiled()
    if not kernels.tiles:
        pytest.skip("this processor has no AMX tiles")
    older_processor = copy.copy(kernels)
    older_processor.tiles = False
    for length in (3, 64, 143):
        given = case(H, G, D, 9, torch.bfloat16)
        tiled, plain = given.run(spans_of(length)), given.run(spans_of(length), kernels=older_processor)
        assert not torch.equal(tiled, plain)  # the one rounds its weights to bfloat16
        torch.testing.assert_close(tiled.float(), plain.float(), rtol=1e-2, atol=1e-2)


@DTYPES
def test_only_the_rows_of_the_spans_are_written(dtype: torch.dtype) -> None:
    given = case(6, 2, 16, 7, dtype)
    pages, tails = given.pages.clone(), given.tails.clone()
    out = given.run([causal(1, 60, 2, table(8)), tree(4, [20, 20], [5, 2], [1, 0], table(3))], layer=0)
    assert (out == 7).all(1).tolist() == [True, False, False, True, False, False, True]
    slots = [table(8)[7] * BLOCK + 4, table(8)[7] * BLOCK + 5]
    pages[0, slots] = given.kv[1:3]
    tails[0, [5 * DEPTH + 1, 2 * DEPTH]] = given.kv[4:6].float()
    assert torch.equal(given.pages, pages)
    assert torch.equal(given.tails, tails)


@DTYPES
def test_large_scores_and_what_a_row_must_not_see(dtype: torch.dtype) -> None:
    """Scores far apart neither overflow nor vanish, and hidden positions may hold anything."""
    given = case(4, 2, 32, 2, dtype)
    given.q.mul_(200)
    blocks = table(10)
    hidden = [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(71, 80)]
    given.pages[:, hidden] = float("nan")
    span = causal(0, 69, 2, blocks)
    out = given.run([span])
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for row in range(2):
        expected = written_out(given, span, row, 1)
        torch.testing.assert_close(out[row].double(), expected, rtol=tolerance, atol=tolerance)
