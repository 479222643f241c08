"""Draws, scores and guesses of coupled sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ssd_kernels.philox import words_to_exponential

from ssd_cluster.errors import NumericalError
from ssd_cluster.sampling.coupled import Guesses, coupled_sample, coupled_scores, tie_gap, top_guesses
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process

LAST = 2**32 - 1


def laws(rows: int, vocabulary: int, seed: int = 0) -> torch.Tensor:
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2
    return process(logits, [RowParams()] * rows)


def test_the_winner_has_the_best_score() -> None:
    probs, noise = laws(50, 101), NoiseSource(1, 101).rows(range(50))
    scores = coupled_scores(probs, noise)
    exact = probs.double().log() - noise.double().log()
    torch.testing.assert_close(scores.double(), exact, rtol=0, atol=2e-6)
    assert coupled_sample(probs, noise).tolist() == exact.argmax(dim=1).tolist()
    assert len(set(coupled_sample(probs, noise).tolist())) > 10


def test_one_call_for_many_rows_equals_many_calls() -> None:
    probs, noise = laws(6, 101), NoiseSource(1, 101).rows(range(6))
    together = coupled_sample(probs, noise).tolist()
    assert [coupled_sample(probs[i : i + 1], noise[i : i + 1]).item() for i in range(6)] == together
    assert coupled_sample(probs, list(noise)).tolist() == together


def test_greedy_rows_need_no_noise() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]] * 2)
    probs = process(logits, [RowParams(0.0)] * 2)
    row = NoiseSource(1, 4).row(0)
    assert coupled_sample(probs, [None, row]).tolist() == [1, 1]
    mixed = process(logits, [RowParams(0.0), RowParams(1.0)])
    assert coupled_sample(mixed, [None, row])[1] == coupled_sample(mixed[1:], [row])[0]
    assert coupled_scores(probs, [None, None])[0].tolist() == [-math.inf, 0.0, -math.inf, -math.inf]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5]), min_size=1, max_size=9), st.data())
def test_equal_quotients_go_to_the_lowest_id(weights: list[float], data: st.DataObject) -> None:
    noise = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=len(weights), max_size=len(weights)))
    if not any(weights):
        weights[-1] = 0.25
    quotients = [(e / p, i) for i, (e, p) in enumerate(zip(noise, weights, strict=True)) if p > 0]
    assert coupled_sample(torch.tensor([weights]), torch.tensor([noise])).item() == min(quotients)[1]


@pytest.mark.parametrize("word_of_zero", [0, LAST])
@pytest.mark.parametrize("word_of_rest", [0, LAST])
def test_an_impossible_token_never_wins_whatever_its_noise(word_of_zero: int, word_of_rest: int) -> None:
    for tiny in (0.25, 1e-30, 1e-44):
        probs = torch.tensor([[0.0, tiny, 0.0, 0.0]])
        words = torch.tensor([[word_of_zero, word_of_rest, word_of_zero, word_of_zero]])
        if tiny < 1e-40 and word_of_rest == LAST:
            continue  # a lone subnormal probability is no law: rows sum to 1
        assert coupled_sample(probs, words_to_exponential(words)).item() == 1
    scores = coupled_scores(torch.tensor([[0.0, 1.0]]), words_to_exponential(torch.tensor([[word_of_zero, 0]])))
    assert scores[0, 0] == -math.inf


def test_extreme_words_are_finite_races() -> None:
    probs = torch.tensor([[0.5, 0.5]])
    for words, winner in (([0, LAST], 0), ([LAST, 0], 1), ([0, 0], 0), ([LAST, LAST], 0), ([LAST, LAST - 1], 0)):
        assert coupled_sample(probs, words_to_exponential(torch.tensor([words]))).item() == winner


@pytest.mark.parametrize("params", [RowParams(0.0), RowParams(1.0), RowParams(0.5, top_p=0.9)])
def test_unusable_rows_are_an_error_not_a_token(params: RowParams) -> None:
    noise = [None] if params.greedy else NoiseSource(0, 3).rows([0])
    for row in ([0.0, math.nan, 0.0], [-math.inf] * 3, [math.inf, 0.0, 0.0]):
        with pytest.raises(NumericalError, match="no token with positive probability"):
            coupled_sample(process(torch.tensor([row]), [params]), noise)


def test_rows_must_match() -> None:
    with pytest.raises(ValueError, match="1 rows of noise for 2"):
        coupled_sample(laws(2, 5), NoiseSource(0, 5).rows([0]))
    with pytest.raises(ValueError, match="0 rows of noise for 2"):
        coupled_scores(laws(2, 5), [])
    assert coupled_sample(torch.empty(0, 5), []).tolist() == []
    assert coupled_scores(torch.empty(0, 5), []).shape == (0, 5)


def test_tie_gap() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.4, 0.4, 0.2]])
    noise = torch.tensor([[1.0, 0.3, 5.0], [1.0, 1.0, 1.0], [1.0, 1.0, 9.0]])
    gaps = tie_gap(probs, noise)
    assert gaps[0].item() == pytest.approx(math.log(2), abs=1e-6)
    assert gaps[1] == math.inf
    assert gaps[2] == 0
    logits = torch.tensor([[1.0, 1.25, -3.0]])
    assert tie_gap(logits.softmax(dim=1), [None]).item() == pytest.approx(0.25, abs=1e-6)
    assert tie_gap(torch.ones(2, 1), [None, None]).tolist() == [math.inf] * 2


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([-math.inf, 0.0, 1.0, 2.0]), min_size=1, max_size=150),
    st.integers(0, 8),
    st.sets(st.integers(0, 200), max_size=5),
)
def test_guesses_equal_a_full_sort(row: list[float], count: int, excluded: set[int]) -> None:
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    wanted = [i for i in order if i not in excluded and row[i] > -math.inf][:count]
    (guesses,) = top_guesses(torch.tensor([row]), count, [excluded])
    assert guesses == Guesses(tuple(wanted), tuple(row[i] for i in wanted))


def test_guesses_of_a_reduced_head_are_target_ids() -> None:
    ids = torch.tensor([2, 10, 30, 47])
    scores = torch.tensor([[0.0, 3.0, 2.0, 1.0], [5.0, 5.0, -math.inf, 4.0]])
    first, second = top_guesses(scores, [2, 9], [{10}, {3}], ids)
    assert first == Guesses((30, 47), (2.0, 1.0))
    assert second == Guesses((2, 10, 47), (5.0, 5.0, 4.0))


def test_guesses_need_a_count_and_an_exclusion_per_row() -> None:
    with pytest.raises(ValueError, match="2 rows of scores, 1 counts"):
        top_guesses(torch.zeros(2, 3), [1], [(), ()])
    with pytest.raises(ValueError, match="1 exclusions"):
        top_guesses(torch.zeros(2, 3), 1, [()])


def test_a_perfect_draft_guesses_every_token() -> None:
    """With q = p and the same noise the pre-drafted token is the target's, and so is the best guess."""
    probs, source = laws(40, 301), NoiseSource(11, 301)
    y = coupled_sample(probs, source.rows(range(40)))
    x = coupled_sample(probs.clone(), NoiseSource(11, 301).rows(range(40)))
    assert torch.equal(x, y)
    guesses = top_guesses(coupled_scores(probs, source.rows(range(40))), 3, [()] * 40)
    assert [g.ids[0] for g in guesses] == y.tolist()
    after_rejection = top_guesses(coupled_scores(probs, source.rows(range(40))), 3, [(t,) for t in y.tolist()])
    assert all(t not in g.ids for t, g in zip(y.tolist(), after_rejection, strict=True))
    assert [g.ids[0] for g in after_rejection] == [g.ids[1] for g in guesses]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_laws_and_draws_equal_the_host() -> None:
    logits = torch.randn(6, 49152, generator=torch.Generator().manual_seed(0)) * 3
    params = [
        RowParams(0.0),
        RowParams(0.7),
        RowParams(1.0, top_k=50),
        RowParams(1.0, top_p=0.9),
        RowParams(),
        RowParams(),
    ]
    probs = process(logits, params)
    on_device = process(logits.cuda(), params)
    torch.testing.assert_close(on_device.cpu(), probs, rtol=1e-4, atol=1e-9)
    noise = NoiseSource(5, 49152).rows(range(6))
    rows = [None, *noise[1:]]
    drawn = coupled_sample(on_device, [None if row is None else row.cuda() for row in rows]).cpu()
    same = drawn == coupled_sample(probs, rows)
    assert bool((same | (tie_gap(probs, rows) < 1e-4)).all())
    np.testing.assert_allclose(NoiseSource(5, 49152, "cuda").rows(range(6)).cpu().numpy(), noise.numpy(), rtol=5e-7)
