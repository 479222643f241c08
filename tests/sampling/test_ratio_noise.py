"""Noise of the ratio rules: where it sits in the counter, that no two uses share it, that the key stays apart."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from support import philox_oracle as oracle

from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.ratio_noise import (
    ACCEPT_DOMAIN,
    DRAFT_DOMAIN,
    RESIDUAL_DOMAIN,
    DraftDraws,
    RoundDraws,
    ratio_key,
)


def test_accept_uniforms_and_residual_rows_are_the_words_of_the_design() -> None:
    draws = RoundDraws(-5, 2**32 - 1, 17, 9)
    words = [oracle.word(-5, 17 + t, 0, ACCEPT_DOMAIN, 2**32 - 1) for t in range(4)]
    assert draws.accept(4).tolist() == [oracle.uniform(r) for r in words]
    residual = [oracle.exponential(oracle.word(-5, 20, v, RESIDUAL_DOMAIN, 2**32 - 1)) for v in range(9)]
    assert draws.residual(20).tolist() == pytest.approx(residual, rel=5e-7)


def test_uniforms_of_several_drafts_of_a_round() -> None:
    draws = RoundDraws(3, 1, 17, 9)
    for draft in (0, 1, 5):
        words = [oracle.word(3, 17 + t, draft, ACCEPT_DOMAIN, 1) for t in range(3)]
        assert draws.accept(3, draft).tolist() == [oracle.uniform(r) for r in words]


def test_draft_rows_are_the_words_of_the_design() -> None:
    wanted = [oracle.exponential(oracle.word(11, 4, v, DRAFT_DOMAIN, 6)) for v in range(7)]
    assert DraftDraws(11, 7).row(4, 6).tolist() == pytest.approx(wanted, rel=5e-7)


def test_rounds_positions_keys_and_streams_are_all_told_apart() -> None:
    rows = [RoundDraws(k, r, 0, 64).residual(p) for k in (1, 2) for r in (0, 1, 2) for p in (0, 1)]
    rows += [DraftDraws(1, 64).row(p, r) for r in (0, 1) for p in (0, 1)]
    rows += [NoiseSource(1, 64).row(p) for p in (0, 1)]
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)
    uniforms = [tuple(RoundDraws(1, r, b, 4).accept(3).tolist()) for r in (0, 1) for b in (0, 3)]
    assert len(set(uniforms)) == 4


def test_what_is_drawn_ahead_is_what_is_used() -> None:
    ahead, now = RoundDraws(1, 2, 3, 50), RoundDraws(1, 2, 3, 50)
    ahead.prefetch(7)
    row = ahead.residual(3)
    assert ahead.residual(3) is row
    assert torch.equal(row, now.residual(3))
    assert torch.equal(ahead.accept(4), now.accept(7)[:4])
    assert torch.equal(now.accept(9)[:7], ahead.accept(7))
    assert ahead.accept(0).shape == (0,)


def test_draft_rows_are_kept_within_the_bound() -> None:
    draws = DraftDraws(1, 10, capacity=2)
    first = draws.row(0, 0)
    assert draws.row(0, 0) is first
    draws.row(1, 0)
    assert draws.row(0, 0) is first
    draws.row(2, 0)
    assert draws.row(0, 0) is first
    draws.row(3, 0)
    draws.row(4, 0)
    again = draws.row(0, 0)
    assert again is not first
    assert torch.equal(again, first)
    with pytest.raises(ValueError, match="capacity"):
        DraftDraws(1, 10, capacity=0)


def test_the_key_depends_on_secret_and_seed_and_tells_neither() -> None:
    keys = {ratio_key(secret, seed) for secret in (0, 1, 2**128 - 1) for seed in (0, 1, 2**63)}
    assert len(keys) == 9
    assert keys.isdisjoint({0, 1, 2**63})
    assert all(0 <= key < 2**64 for key in keys)
    assert ratio_key(5, -1) == ratio_key(5, 2**64 - 1)
    for secret in (-1, 2**128):
        with pytest.raises(OverflowError):
            ratio_key(secret, 0)


def test_uniforms_are_uniform_and_independent_between_rounds() -> None:
    """Level 1e-3 for each, fixed keys."""
    first = torch.cat([RoundDraws(key, 1, 0, 1).accept(8) for key in range(250)])
    second = torch.cat([RoundDraws(key, 2, 0, 1).accept(8) for key in range(250)])
    assert stats.kstest(first.numpy(), "uniform").pvalue > 1e-3
    assert stats.pearsonr(first.numpy(), second.numpy()).pvalue > 1e-3
    assert float(first.min()) > 0
    assert float(first.max()) < 1


def test_a_round_word_must_fit_the_counter() -> None:
    for word in (-1, 2**32):
        with pytest.raises(ValueError, match="round must be in"):
            RoundDraws(0, word, 0, 4).prefetch(1)
