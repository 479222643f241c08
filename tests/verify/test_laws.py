"""Laws of drafts: sparse and dense ones answer alike; what a peer sends is checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_cluster.verify import DenseLaw, SparseLaw
from ssd_cluster.verify.laws import BLOCK_VALUES, positive_mass

V = 11


def pair(seed: int, n: int = 3, m: int = 5) -> tuple[SparseLaw, DenseLaw]:
    """The same law twice; the last two sparse entries are padding, one of them on an id that is listed."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(V, generator=generator)[:m] for _ in range(n)])
    probabilities = torch.rand(n, m, generator=generator) + 0.01
    probabilities /= probabilities.sum(-1, keepdim=True)
    ids = torch.cat([ids, ids[:, :1], torch.zeros(n, 1, dtype=torch.int64)], 1)
    sparse = SparseLaw(ids, torch.cat([probabilities, torch.zeros(n, 2)], 1))
    return sparse, DenseLaw(sparse.dense(V))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1))
def test_sparse_and_dense_answer_alike(seed: int, scale: float) -> None:
    sparse, dense = pair(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    rows = torch.softmax(torch.randn(3, V, generator=generator), -1)
    rho = torch.tensor([1.0, scale, 0.0], dtype=torch.float64)
    tokens = torch.randint(0, V, (3,), generator=generator)
    torch.testing.assert_close(sparse.probability_of(tokens), dense.probability_of(tokens))
    torch.testing.assert_close(sparse.excess(rho, rows), dense.excess(rho, rows), atol=3e-7, rtol=0)
    by_hand = (rho.unsqueeze(1) * rows - dense.rows).clamp(min=0).sum(-1)
    torch.testing.assert_close(dense.excess(rho, rows), by_hand.double(), atol=3e-7, rtol=0)
    for t in range(3):
        wanted = (float(rho[t]) * rows[t] - dense.rows[t]).clamp(min=0)
        for law in (sparse, dense):
            torch.testing.assert_close(law.residual(t, float(rho[t]), rows[t]), wanted)
            assert (law.residual(t, 1.0, torch.zeros(V)) == 0).all()


def test_parts_of_a_law() -> None:
    for law in pair(5):
        assert (law.n, law.head(2).n, law.tail(2).n, law.row(1).n) == (3, 2, 1, 1)
        full = law.dense(V)
        assert torch.equal(law.head(2).dense(V), full[:2])
        assert torch.equal(law.tail(1).dense(V), full[1:])
        assert torch.equal(law.row(1).dense(V), full[1:2])
        top = int(full[0].argmax())
        left = law.without([top]).dense(V)
        assert torch.equal(left[1:], full[1:])
        assert left[0, top] == 0
        assert float(left[0].sum()) == pytest.approx(1, abs=1e-6)
        assert law.without([]).dense(V).equal(full)
        torch.testing.assert_close(left[0] * (1 - full[0, top]), full[0].index_fill(0, torch.tensor([top]), 0.0))


def test_ids_outside_a_row_have_no_probability() -> None:
    for law in pair(6):
        assert law.probability_of(torch.tensor([-1, V, 2**40])).tolist() == [0, 0, 0]


def test_point_mass() -> None:
    law = SparseLaw.point_mass(torch.tensor([4, 0]))
    assert torch.equal(law.dense(5), torch.tensor([[0.0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]))
    assert SparseLaw.point_mass(torch.tensor([], dtype=torch.int64)).n == 0


@pytest.mark.parametrize("vocabulary", [1, 7, BLOCK_VALUES // 6, BLOCK_VALUES // 6 + 1, 49152])
def test_mass_over_blocks_of_the_vocabulary(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    P, Q = (torch.softmax(torch.randn(2, 3, vocabulary, generator=generator), -1) for _ in range(2))
    rho = torch.rand(2, 3, generator=generator)
    wanted = (rho.double().unsqueeze(-1) * P.double() - Q.double()).clamp(min=0).sum(-1)
    torch.testing.assert_close(positive_mass(rho, P, Q), wanted, atol=2e-7, rtol=0)
    assert positive_mass(rho[:, :0], P[:, :0], Q[:, :0]).shape == (2, 0)


def test_a_valid_law_of_a_peer_is_normalised() -> None:
    rows = torch.tensor([[0.5004, 0.5, 0.0], [0.2, 0.3, 0.4995]])
    law = DenseLaw.validated(rows.double(), 3)
    assert law.rows.dtype == torch.float32
    torch.testing.assert_close(law.rows.sum(-1), torch.ones(2))
    sparse = SparseLaw.validated(torch.tensor([[2, 0, 0], [1, 2, 2]]), torch.tensor([[0.5, 0.5, 0], [1, 0, 0]]), 3)
    torch.testing.assert_close(sparse.dense(3), torch.tensor([[0.5, 0, 0.5], [0, 1, 0]]))


IDS = torch.tensor([[0, 1]])
HALVES = torch.tensor([[0.5, 0.5]])
REFUSALS: dict[str, tuple[Callable[[], Any], str]] = {
    "vocabulary": (lambda: DenseLaw.validated(HALVES, 3), r"rows \[n, 3\], got \(1, 2\)"),
    "rank": (lambda: DenseLaw.validated(HALVES[0], 2), r"rows \[n, 2\]"),
    "nan": (lambda: DenseLaw.validated(torch.tensor([[math.nan, 1.0]]), 2), "not finite"),
    "infinite": (lambda: DenseLaw.validated(torch.tensor([[math.inf, 0.0]]), 2), "not finite"),
    "negative": (lambda: DenseLaw.validated(torch.tensor([[1.1, -0.1]]), 2), "negative"),
    "sum": (lambda: DenseLaw.validated(torch.tensor([[0.5, 0.5], [0.5, 0.502]]), 2), "row 1 of a law sums to 1.002"),
    "integers": (lambda: DenseLaw.validated(torch.tensor([[1, 0]]), 2), "floating point"),
    "sparse shapes": (lambda: SparseLaw.validated(IDS, HALVES[:, :1], 2), "one shape"),
    "sparse ids": (lambda: SparseLaw.validated(IDS.int(), HALVES, 2), "int64"),
    "sparse sum": (lambda: SparseLaw.validated(IDS, HALVES / 2, 2), "sums to 0.5"),
    "empty rows": (lambda: SparseLaw.validated(IDS[:, :0], HALVES[:, :0], 2), "sums to 0"),
    "id too large": (lambda: SparseLaw.validated(IDS, HALVES, 1), r"outside \[0, 1\)"),
    "negative id": (lambda: SparseLaw.validated(IDS - 1, HALVES, 2), "outside"),
    "id twice": (lambda: SparseLaw.validated(torch.tensor([[1, 1]]), HALVES, 2), "twice"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_wrong_with_a_law_is_said(case: str) -> None:
    build, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        build()


def test_rows_of_another_vocabulary_are_an_error() -> None:
    with pytest.raises(ValueError, match="rows of q have 2 ids, those of p 3"):
        DenseLaw(HALVES).excess(torch.ones(1), torch.ones(1, 3) / 3)
