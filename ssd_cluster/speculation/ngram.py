"""Proposals from the sequence's own text: what followed the last occurrence of its latest n-gram (prompt lookup)."""

from __future__ import annotations

from collections.abc import Iterable

from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Proposal, ProposalKind


class NgramProposer:
    """Index of one sequence's n-grams; amortised O(max_n - min_n) per appended token.

    Args:
        tokens: the prompt.
        min_n: shortest n-gram that may be matched; shorter ones match by accident.
        max_n: longest n-gram tried; the longest match wins, of its occurrences the latest.

    Raises:
        ConfigError: not 1 <= min_n <= max_n.
    """

    def __init__(self, tokens: Iterable[int] = (), *, min_n: int = 2, max_n: int = 5) -> None:
        if not 1 <= min_n <= max_n:
            raise ConfigError(
                f"n-gram lengths must satisfy 1 <= min <= max, got {min_n} and {max_n}", param="ngram_min"
            )
        self._min_n = min_n
        self._max_n = max_n
        self._tokens: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def __len__(self) -> int:
        """Tokens seen."""
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append committed tokens. An n-gram is indexed once a token follows it, so it never matches itself."""
        text, follows = self._tokens, self._follows
        for token in tokens:
            end = len(text)
            for n in range(self._min_n, min(self._max_n, end) + 1):
                follows[tuple(text[end - n :])] = end
            text.append(token)

    def propose(self, k: int) -> tuple[int, ...]:
        """Exactly ``k`` tokens, or none if no n-gram repeats.

        A copy that reaches the end of the text goes on with the tokens it has just copied, which continues a loop.
        """
        text = self._tokens
        for n in range(min(self._max_n, len(text)), self._min_n - 1, -1):
            start = self._follows.get(tuple(text[-n:]))
            if start is not None:
                period = len(text) - start
                return tuple(text[start + i % period] for i in range(k))
        return ()

    def proposal(self, k: int) -> Proposal:
        """``propose`` as a proposal of kind ``delta``, or of kind ``none`` without tokens."""
        tokens = self.propose(k)
        if not tokens:
            return Proposal(len(self._tokens))
        return Proposal(len(self._tokens), tokens, ProposalKind.DELTA, "ngram")
