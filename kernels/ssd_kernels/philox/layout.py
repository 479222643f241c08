"""Constants of Philox4x32-10 and the counter layout of the noise; shared by all backends.

Key = the 64-bit seed (low word, high word). Counter = (token id >> 2, position, domain, round). The word of a token is
number ``token id & 3`` of its block. Source of the generator: Salmon et al., "Parallel random numbers: as easy as
1, 2, 3", SC 2011.
"""

from __future__ import annotations

from collections.abc import Sequence

MULTIPLIER_0 = 0xD2511F53
MULTIPLIER_1 = 0xCD9E8D57
WEYL_0 = 0x9E3779B9
WEYL_1 = 0xBB67AE85
ROUNDS = 10
WORD_MASK = 0xFFFFFFFF

LARGEST_UNIFORM = 1 - 2.0**-24
"""Largest float32 below 1; a uniform is never above it, so that ``-log1p(-u)`` is finite."""


def split_seed(seed: int) -> tuple[int, int]:
    """(low word, high word) of ``seed`` mod 2**64; negative seeds wrap."""
    return seed & WORD_MASK, (seed >> 32) & WORD_MASK


def round_keys(low: int, high: int) -> list[tuple[int, int]]:
    """The ten pairs of round keys of one 64-bit key."""
    return [((low + r * WEYL_0) & WORD_MASK, (high + r * WEYL_1) & WORD_MASK) for r in range(ROUNDS)]


def check_rows(
    seeds: Sequence[int], positions: Sequence[int], vocabulary: int, domain: int, rounds: Sequence[int] | None
) -> Sequence[int]:
    """The round of every row, zeros for None; refuses rows that the counter layout cannot hold.

    Raises:
        ValueError: lengths differ, a position, a round or the domain is outside [0, 2**32), or ``vocabulary`` is not
            in [1, 2**34].
    """
    if len(seeds) != len(positions):
        raise ValueError(f"{len(seeds)} seeds for {len(positions)} positions")
    rounds = (0,) * len(positions) if rounds is None else rounds
    if len(rounds) != len(positions):
        raise ValueError(f"{len(rounds)} rounds for {len(positions)} positions")
    for name, value in [("domain", domain), *(("position", p) for p in positions), *(("round", r) for r in rounds)]:
        if not 0 <= value <= WORD_MASK:
            raise ValueError(f"{name} must be in [0, 2**32), got {value}")
    if not 1 <= vocabulary <= 1 << 34:
        raise ValueError(f"vocabulary must be in [1, 2**34], got {vocabulary}")
    return rounds
