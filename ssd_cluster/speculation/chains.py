"""Which drafted tokens may be verified with the law they were drawn from (ratio kinds).

A ratio rule is exact for tokens that are draws from their laws given everything that is known when they are chosen. So
a chain qualifies by where it stands, never by what it holds: it is what the newest block on the proposal just verified
has behind the outcome that verification gave, or a just-in-time chain at the committed length. Every other way to the
same tokens (an older block that happens to agree, a branch entered in its middle, two branches joined) selects by the
tokens themselves; the trie offers those, as ``delta``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ssd_cluster.speculation.trie import Continuation
from ssd_cluster.types import BlockOrigin, ProposalKind, fingerprint


class ChainBranch(Protocol):
    """One guessed outcome, as ``link.messages.Branch`` has it."""

    @property
    def k(self) -> int: ...
    @property
    def t_star(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def jit(self) -> bool: ...


class ChainBlock(Protocol):
    """Branches for one round, as ``link.messages.Block`` has it."""

    @property
    def block_seq(self) -> int: ...
    @property
    def base_len(self) -> int: ...
    @property
    def fingerprint(self) -> int: ...
    @property
    def branches(self) -> Sequence[ChainBranch]: ...


class RatioChains:
    """The blocks that the next outcomes may name a chain in.

    Args:
        base_len: committed tokens.
    """

    def __init__(self, base_len: int) -> None:
        self._base_len = base_len
        self._kind = ProposalKind.NONE
        self._source = "draft"
        self._blocks: dict[tuple[int, int], ChainBlock] = {}
        self._verified: tuple[int, int] | None = None
        self._outcome: tuple[int, int] | None = None

    def add(self, block: ChainBlock, kind: ProposalKind, source: str) -> None:
        """A block of a ratio kind has come; of several on one proposal the newest counts."""
        key = (block.base_len, block.fingerprint)
        if block.base_len < self._base_len and key != self._verified:
            return
        known = self._blocks.get(key)
        if known is None or known.block_seq < block.block_seq:
            self._blocks[key] = block
        self._kind, self._source = kind, source

    def advance(self, n: int, name: int, t_star: int) -> None:
        """A verification has ended: ``n`` tokens were committed, the last one ``t_star``.

        Args:
            n: at least 1.
            name: fingerprint of the proposal that the target had told the draft.
            t_star: the token after the kept ones.
        """
        self._verified, self._outcome = (self._base_len, name), (n - 1, t_star)
        self._base_len += n
        self._blocks = {k: b for k, b in self._blocks.items() if k == self._verified or b.base_len >= self._base_len}

    def forget(self, n: int) -> None:
        """``n`` tokens were committed without an outcome that a block could name."""
        self._base_len += n
        self._blocks.clear()
        self._verified = self._outcome = None

    def lookup(self, k: int) -> Continuation | None:
        """The first ``k`` tokens of the chain that may be verified now; None if there is none."""
        if k <= 0 or not self._blocks:
            return None
        found = [one for one in (self._behind_outcome(), self._just_in_time()) if one is not None]
        if not found:
            return None
        tokens, origin = max(found, key=lambda one: one[1].block_seq)
        return Continuation(tuple(tokens[:k]), self._kind, self._source, 0.0, origin)

    def _behind_outcome(self) -> tuple[Sequence[int], BlockOrigin] | None:
        block = self._blocks.get(self._verified) if self._verified is not None else None
        if block is None:
            return None
        for index, branch in enumerate(block.branches):
            if (branch.k, branch.t_star) == self._outcome and not branch.jit and branch.tokens:
                return branch.tokens, BlockOrigin(block.block_seq, index, 0)
        return None

    def _just_in_time(self) -> tuple[Sequence[int], BlockOrigin] | None:
        """A chain drawn at the committed length: its first token stands as t* and is a draw like the others."""
        block = self._blocks.get((self._base_len, fingerprint(self._base_len, ())))
        if block is None or len(block.branches) != 1 or not block.branches[0].jit:
            return None
        chain = block.branches[0]
        return (chain.t_star, *chain.tokens), BlockOrigin(block.block_seq, 0, 0)
