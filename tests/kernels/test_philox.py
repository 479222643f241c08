"""Words and noise of the CPU backends against the published vectors and an oracle in Python integers."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ssd_kernels.philox import (
    Backend,
    api,
    exponential_noise,
    host,
    noise_words,
    philox4x32,
    uniform_noise,
    words_to_exponential,
)
from support import philox_oracle as oracle

HOST_BACKENDS = (Backend.TORCH, Backend.NUMPY)
LAST = 2**32 - 1
WORD = st.integers(0, LAST)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_published_vectors(backend: Backend) -> None:
    counters, keys, words = (torch.tensor(column) for column in zip(*oracle.VECTORS, strict=True))
    assert torch.equal(philox4x32(counters, keys, backend=backend), words)


def test_oracle_gives_the_published_vectors() -> None:
    assert all(oracle.philox(counter, key) == words for counter, key, words in oracle.VECTORS)


@settings(max_examples=50, deadline=None)
@given(st.tuples(WORD, WORD, WORD, WORD), st.tuples(WORD, WORD))
def test_any_block_equals_the_oracle(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    for backend in HOST_BACKENDS:
        words = philox4x32(torch.tensor([counter]), torch.tensor([key]), backend=backend)
        assert tuple(words[0].tolist()) == oracle.philox(counter, key)


@settings(max_examples=50, deadline=None)
@given(st.integers(-(2**65), 2**65), WORD, st.integers(1, 21), WORD, st.none() | WORD)
def test_row_layout_equals_the_oracle(
    seed: int, position: int, vocabulary: int, domain: int, round_word: int | None
) -> None:
    wanted = [oracle.word(seed, position, token, domain, round_word or 0) for token in range(vocabulary)]
    rounds = None if round_word is None else [round_word]
    for backend in HOST_BACKENDS:
        words = noise_words([seed], [position], vocabulary, domain=domain, rounds=rounds, backend=backend)
        assert words[0].tolist() == wanted
        uniforms = [
            uniform_noise(seed, [position], domain=domain, rounds=rounds, index=token, backend=backend).item()
            for token in range(min(vocabulary, 5))
        ]
        assert uniforms == [oracle.uniform(r) for r in wanted[:5]]


def test_rounds_of_the_rows_of_one_call() -> None:
    row = ([7, 7, 8], [3, 3, 3], 11)
    for backend in HOST_BACKENDS:
        noise = exponential_noise(*row, domain=3, rounds=[0, 5, 5], backend=backend)
        for n, (seed, word) in enumerate(((7, 0), (7, 5), (8, 5))):
            alone = exponential_noise([seed], [3], 11, domain=3, rounds=[word], backend=backend)[0]
            assert torch.equal(noise[n], alone)
        assert torch.equal(noise[0], exponential_noise([7], [3], 11, domain=3, backend=backend)[0])
        assert uniform_noise(7, [], domain=2, backend=backend).shape == (0,)


@pytest.mark.parametrize("vocabulary", [1, 2, 3, 4, 5, 1023, 49152, 151936])
def test_backends_agree_at_every_vocabulary(vocabulary: int) -> None:
    seeds, positions = [5, -1, 2**64 - 2], [0, LAST, 2**31]
    words = noise_words(seeds, positions, vocabulary, backend="torch")
    assert torch.equal(words, noise_words(seeds, positions, vocabulary, backend="numpy"))
    assert words.shape == (3, vocabulary)
    last = vocabulary - 1
    assert words[:, last].tolist() == [oracle.word(s, p, last) for s, p in zip(seeds, positions, strict=True)]
    noise = exponential_noise(seeds, positions, vocabulary, backend="numpy")
    assert noise.is_contiguous()
    assert noise.dtype == torch.float32
    assert torch.equal(noise, words_to_exponential(words))


def test_seeds_wrap_modulo_2_to_64() -> None:
    for backend in HOST_BACKENDS:
        rows = noise_words([-3, 2**64 - 3, 3 * 2**64 - 3, 3], [9] * 4, 8, backend=backend)
        assert torch.equal(rows[0], rows[1])
        assert torch.equal(rows[0], rows[2])
        assert not torch.equal(rows[0], rows[3])


def test_high_seed_word_position_and_domain_all_matter() -> None:
    rows = noise_words([1, 1 + 2**32, 1, 1], [7, 7, 8, 7], 64)
    other_domain = noise_words([1], [7], 64, domain=1)[0]
    distinct = {tuple(row.tolist()) for row in (*rows[:3], other_domain)}
    assert len(distinct) == 4
    assert torch.equal(rows[0], rows[3])


def test_one_row_does_not_depend_on_its_batch() -> None:
    batch = exponential_noise([4, 4, 9], [10, 11, 10], 1027)
    assert torch.equal(batch[1], exponential_noise([4], [11], 1027)[0])


def by_numpy(words: torch.Tensor) -> torch.Tensor:
    """The NumPy backend's conversion of ``[n]`` words; it takes them as four rows."""
    out = np.empty((len(words), 4), dtype=np.float32)
    host.fill_exponential(words.expand(4, -1).numpy().astype(np.uint64), out)
    return torch.from_numpy(out)[:, 2]


@pytest.mark.parametrize("convert", [words_to_exponential, by_numpy])
def test_uniform_at_both_ends(convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    words = torch.tensor([0, LAST, LAST - 1, 1, LAST - 200])
    noise = convert(words).tolist()
    assert noise[0] == 2.0**-33
    assert noise[1] == pytest.approx(24 * np.log(2), rel=5e-7)
    assert noise[1] == noise[2]
    assert noise == pytest.approx([oracle.exponential(r) for r in words.tolist()], rel=5e-7)
    assert all(0 < e < np.inf for e in noise)


def test_uniform_is_rounded_once() -> None:
    """r + 0.5 has 33 bits: rounding r to float32 first would give other bits for about half of these words."""
    words = torch.randint(0, 2**32, (4096,), generator=torch.Generator().manual_seed(0))
    through_double = ((words.double() + 0.5) * 2.0**-32).float()
    noise = words_to_exponential(words)
    assert torch.equal(noise, -torch.log1p(-through_double.clamp(max=1 - 2.0**-24)))
    twice = -torch.log1p(-(words.float() + 0.5) * 2.0**-32)
    assert not torch.equal(noise, twice)


@pytest.mark.parametrize("backend", HOST_BACKENDS)
def test_noise_within_tolerance_of_double_precision(backend: Backend) -> None:
    words = noise_words([3], [5], 40_000, backend=backend)
    uniform = ((words.double() + 0.5) * 2.0**-32).float().clamp(max=1 - 2.0**-24).double()
    torch.testing.assert_close(
        exponential_noise([3], [5], 40_000, backend=backend).double(), -torch.log1p(-uniform), rtol=5e-7, atol=0
    )


def test_refusals() -> None:
    for position in (-1, 2**32):
        with pytest.raises(ValueError, match="position must be in"):
            noise_words([0], [position], 4)
    with pytest.raises(ValueError, match="domain must be in"):
        exponential_noise([0], [0], 4, domain=2**32)
    with pytest.raises(ValueError, match="2 seeds for 1 positions"):
        exponential_noise([0, 1], [0], 4)
    with pytest.raises(ValueError, match="round must be in"):
        exponential_noise([0], [0], 4, rounds=[2**32])
    with pytest.raises(ValueError, match="2 rounds for 1 positions"):
        uniform_noise(0, [0], domain=2, rounds=[0, 1])
    with pytest.raises(ValueError, match="vocabulary"):
        noise_words([0], [0], 0)
    with pytest.raises(ValueError, match="not a valid Backend"):
        noise_words([0], [0], 4, backend="fortran")
    with pytest.raises(ValueError, match="runs on the CPU"):
        noise_words([0], [0], 4, backend="numpy", device="meta")
    with pytest.raises(ValueError, match=r"counters must be in"):
        philox4x32(torch.full((1, 4), 2**32), torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"counters \[N, 4\]"):
        philox4x32(torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))


def test_no_rows() -> None:
    for backend in HOST_BACKENDS:
        assert noise_words([], [], 7, backend=backend).shape == (0, 7)
        assert exponential_noise([], [], 7, backend=backend).shape == (0, 7)


def test_documented_examples_run() -> None:
    results = doctest.testmod(api)
    assert results.attempted >= 8
    assert results.failed == 0
