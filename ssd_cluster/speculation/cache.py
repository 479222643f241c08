"""What a target keeps per session: the trie, the proposals in flight, and the account of its lookups.

cache.propose(proposal)            verification of ``proposal`` starts
cache.add_block(block, ...)        a pushed block arrives, at any time
cache.resolve((*kept, t_star), k)  the outcome is known: the next proposal, and how the lookup went
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ssd_cluster.speculation.chains import ChainBlock, ChainBranch, RatioChains
from ssd_cluster.speculation.trie import Continuation, TokenTrie
from ssd_cluster.types import RATIO_KINDS, BlockOrigin, LookupResult, Proposal, ProposalKind, fingerprint

_PROPOSALS_KEPT = 3


class BranchLike(ChainBranch, Protocol):
    """A guessed outcome with its score, as ``link.messages.Branch`` has it."""

    @property
    def score(self) -> float: ...


class BlockLike(ChainBlock, Protocol):
    """Branches for one round, as ``link.messages.Block`` has it; those of one k are listed best first."""

    @property
    def branches(self) -> Sequence[BranchLike]: ...


@dataclass(frozen=True, slots=True)
class Resolution:
    """Answer of one lookup.

    Attributes:
        result: how it went. A hit has a continuation; a guessed outcome with nothing drafted behind it yet counts as
            late, since what follows is on its way.
        continuation: tokens to verify next; None unless it is a hit.
        rank: position of t* among the guesses for its kept length (0 = first); None if it was not guessed.
    """

    result: LookupResult
    continuation: Continuation | None
    rank: int | None


class SpeculationCache:
    """Speculation cache of one session of a target.

    Args:
        base_len: committed tokens, as at Open.
        max_nodes: node budget of the trie.
    """

    def __init__(self, base_len: int, max_nodes: int = 400) -> None:
        self._trie = TokenTrie(base_len, max_nodes)
        self._chains = RatioChains(base_len)
        self._proposals: dict[int, tuple[int, ...]] = {}
        self._expected = 0
        self._arrived = False
        self._others = False
        self.propose(Proposal(base_len))

    @property
    def base_len(self) -> int:
        """Committed length that the next proposal follows."""
        return self._trie.base_len

    @property
    def arrived(self) -> bool:
        """Whether a block for the proposal in flight has come."""
        return self._arrived

    def propose(self, proposal: Proposal) -> None:
        """Remember the proposal whose verification starts; blocks for it are expected from now on."""
        name = proposal.fingerprint
        self._arrived = self._arrived and name == self._expected
        self._expected = name
        self._proposals.pop(name, None)
        self._proposals[name] = proposal.tokens
        while len(self._proposals) > _PROPOSALS_KEPT:
            del self._proposals[next(iter(self._proposals))]

    def add_block(self, block: BlockLike, kind: ProposalKind, source: str = "draft") -> int:
        """Insert a pushed block; returns how many of its branches were stale.

        A block on a proposal that is not known any more is used for its k = 0 branches only. Guesses beyond the
        proposal's length are dropped as stale too.
        """
        if block.fingerprint == self._expected:
            self._arrived = True
        else:
            self._others = True
        proposed = self._proposals.get(block.fingerprint, ())
        if kind in RATIO_KINDS:
            self._chains.add(block, kind, source)
        ranks: dict[int, int] = {}
        stale = 0
        for index, branch in enumerate(block.branches):
            rank = ranks.get(branch.k, 0)
            ranks[branch.k] = rank + 1
            fits = branch.k <= len(proposed) and self._trie.insert(
                block.base_len,
                proposed[: branch.k],
                branch.t_star,
                branch.tokens,
                score=branch.score,
                rank=rank,
                source=source,
                kind=kind,
                origin=BlockOrigin(block.block_seq, index, 0),
            )
            stale += not fits
        self._trie.trim()
        return stale

    def resolve(self, tokens: Sequence[int], k: int) -> Resolution:
        """Commit an outcome (kept tokens and t*) and look the next proposal of at most ``k`` tokens up.

        With ``k`` = 0 nothing can be proposed: the result then says only whether the outcome was guessed.
        """
        walk = self._trie.advance(tokens)
        self._chains.advance(len(tokens), self._expected, tokens[-1])
        named = self._chains.lookup(k)
        continuation = named or self._trie.lookup(k)
        if named is not None or (walk.found and (continuation is not None or k == 0)):
            result = LookupResult.HIT
        elif self._arrived:
            result = LookupResult.LATE if walk.found else LookupResult.MISS
        else:
            result = LookupResult.STALE if self._others and not walk.found else LookupResult.LATE
        self._arrived = self._others = False
        self._expected = fingerprint(self.base_len, ())
        return Resolution(result, continuation if result is LookupResult.HIT else None, walk.rank)

    def lookup(self, k: int) -> Continuation | None:
        """What can be proposed now, without an outcome: after waiting for a just-in-time chain or a late block."""
        return self._chains.lookup(k) or self._trie.lookup(k)

    def commit(self, tokens: Sequence[int]) -> None:
        """Commit tokens of a round that no block was expected for (plain steps); not a lookup."""
        self._trie.advance(tokens)
        self._chains.forget(len(tokens))
        self._arrived = self._others = False
        self._expected = fingerprint(self.base_len, ())
