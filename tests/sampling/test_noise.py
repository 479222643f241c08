"""The noise cache returns the rows of the pure function, within its bound."""

from __future__ import annotations

import pytest
import torch
from ssd_kernels.philox import exponential_noise

from ssd_cluster.sampling.noise import NoiseSource


def plain(seed: int, position: int, vocabulary: int = 37) -> torch.Tensor:
    return exponential_noise([seed], [position], vocabulary)[0]


def test_rows_are_the_pure_function_of_seed_and_position() -> None:
    source = NoiseSource(-7, 37)
    for position in (0, 5, 2**32 - 1, 5):
        assert torch.equal(source.row(position), plain(2**64 - 7, position))
    assert torch.equal(source.rows([5, 9, 5]), torch.stack([plain(-7, p) for p in (5, 9, 5)]))


def test_target_and_draft_sources_agree_in_any_order_of_use() -> None:
    target, draft = NoiseSource(3, 37), NoiseSource(3, 37, capacity=1)
    draft.prefetch(range(12, 18))
    wanted = target.rows(range(10, 16))
    for i, position in reversed(list(enumerate(range(10, 16)))):
        assert torch.equal(draft.row(position), wanted[i])


def test_a_reduced_head_gets_the_noise_of_target_ids() -> None:
    ids = torch.tensor([0, 3, 4, 36])
    source = NoiseSource(3, 37)
    assert torch.equal(source.rows([8, 2], ids), torch.stack([plain(3, 8)[ids], plain(3, 2)[ids]]))


def test_prefetched_rows_are_not_drawn_again() -> None:
    source = NoiseSource(3, 37)
    source.prefetch([4, 5, 5])
    assert len(source) == 2
    first = source.row(4)
    source.prefetch([4])
    assert source.row(4) is first


def test_capacity_bounds_the_cache_and_the_least_recently_used_goes() -> None:
    source = NoiseSource(3, 37, capacity=3)
    kept = source.row(0)
    source.prefetch([1, 2])
    source.row(0)
    source.row(3)
    assert len(source) == 3
    assert source.row(0) is kept
    source.prefetch(range(100))
    assert len(source) == 3
    assert torch.equal(source.rows(range(10)), torch.stack([plain(3, p) for p in range(10)]))
    assert len(source) == 3


def test_draw_missing_draws_one_row_at_a_time_and_never_pushes_one_out() -> None:
    source = NoiseSource(3, 37, capacity=3)
    source.prefetch([5])
    assert [source.draw_missing(range(4, 8)) for _ in range(3)] == [True, True, False]
    assert [p in source for p in range(4, 8)] == [True, True, True, False]
    assert torch.equal(source.row(6), plain(3, 6))


def test_discard_below() -> None:
    source = NoiseSource(3, 37)
    source.prefetch([7, 8, 9])
    kept = source.row(8)
    source.discard_below(8)
    assert len(source) == 2
    assert source.row(8) is kept
    assert torch.equal(source.row(7), plain(3, 7))


def test_refusals_and_no_rows() -> None:
    with pytest.raises(ValueError, match="capacity"):
        NoiseSource(0, 4, capacity=0)
    with pytest.raises(ValueError, match="position"):
        NoiseSource(0, 4).row(2**32)
    assert NoiseSource(0, 4).rows([]).shape == (0, 4)
    assert NoiseSource(0, 4).rows([], torch.tensor([1])).shape == (0, 1)


def test_noise_of_an_id_does_not_depend_on_the_vocabulary() -> None:
    """A draft may know fewer ids than the target's padded head has columns."""
    padded = NoiseSource(3, 49152).row(5)
    for vocabulary in (1, 37, 49001):
        assert torch.equal(NoiseSource(3, vocabulary).row(5), padded[:vocabulary])
