"""A score and a token id in one int64, so that one minimum or maximum finds the winner, lowest id among equals.

High word: the bits of a float32 as a signed integer of the same order. Low word: the id (for minima) or its complement
(for maxima).
"""

from __future__ import annotations

from torch import Tensor

LOW = 0xFFFFFFFF
INFINITE = 0x7F800000
"""Bits of float32 infinity: a race quotient with this high word belongs to a token that cannot win."""

NOTHING = -(1 << 63)
"""Packed maximum of a row without any candidate."""


def race_winner(packed: Tensor) -> Tensor:
    """Id of packed minima ``[...]`` of race quotients E / p; -1 where no token has mass."""
    return (packed & LOW).masked_fill(packed >> 32 >= INFINITE, -1)


def score_winner(packed: Tensor) -> Tensor:
    """Id of packed maxima ``[...]`` of scores; -1 where there was no candidate."""
    return (LOW - (packed & LOW)).masked_fill(packed == NOTHING, -1)
