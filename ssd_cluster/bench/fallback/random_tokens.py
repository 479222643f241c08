"""The fallback of the SSD paper's implementation: random tokens. Benchmarks only; no configuration knows it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ssd_cluster.types import Proposal, ProposalKind

SOURCE = "random"


class RandomTokens:
    """Proposes uniformly drawn ids.

    Args:
        vocabulary: ids below this.
        seed: of the draws.
    """

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        self._vocabulary = vocabulary
        self._rng = random.Random(seed)

    def __call__(self, tokens: Sequence[int], k: int) -> Proposal:
        """``k`` tokens to follow the committed ``tokens``."""
        drawn = tuple(self._rng.randrange(self._vocabulary) for _ in range(k))
        return Proposal(len(tokens), drawn, ProposalKind.DELTA, SOURCE)
