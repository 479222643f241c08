"""Dividing what several parties want of something scarce."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def fair_shares(wanted: Mapping[T, int], weights: Mapping[T, float], budget: int) -> dict[T, int]:
    """Weighted max-min shares: whoever wants less than its part gets all of it, the others divide the rest by weight.

    Args:
        wanted: whole numbers of at least 0.
        weights: above 0, of everybody in ``wanted``.
        budget: to divide; fractions are lost.
    """
    shares: dict[T, int] = {}
    left, weight_left = budget, sum(weights[party] for party in wanted)
    for party in sorted(wanted, key=lambda party: wanted[party] / weights[party]):
        shares[party] = min(wanted[party], int(left * weights[party] / weight_left))
        left -= shares[party]
        weight_left -= weights[party]
    return shares
