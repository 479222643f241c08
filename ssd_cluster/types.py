"""Vocabulary shared by every room: small enumerations and the proposal that a target verifies."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """How the target engine decodes: plain, synchronous speculation, or asynchronous with speculation caches."""

    AR = "ar"
    SD = "sd"
    SSD = "ssd"


class ProposalKind(StrEnum):
    """What a proposal says about how its tokens were drawn; the verification rule is chosen by it, per row."""

    NONE = "none"
    COUPLED = "coupled"
    DELTA = "delta"
    SPARSE = "sparse"
    DENSE = "dense"


RATIO_KINDS = frozenset({ProposalKind.SPARSE, ProposalKind.DENSE})
"""Kinds whose tokens come with the laws they were drawn from, and are verified by ratios of probabilities."""


class FinishReason(StrEnum):
    """Why a choice ended. ``STOP`` covers EOS, stop strings and stop token ids."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class LookupResult(StrEnum):
    """What one lookup in a speculation cache found (speculation.md section 2).

    ``LATE``: no block for this round has arrived. ``STALE``: only blocks for an older round or for another
    proposal are there and none matches. ``MISS``: the block is there and does not hold the outcome.
    """

    HIT = "hit"
    MISS = "miss"
    LATE = "late"
    STALE = "stale"


@dataclass(frozen=True, slots=True)
class BlockOrigin:
    """Where proposed tokens stood in a pushed block: the draft keeps the keys and values of that branch."""

    block_seq: int
    branch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens proposed to follow ``base_len`` committed tokens.

    Attributes:
        base_len: committed length (prompt + output) that the first proposed token follows.
        tokens: proposed token ids, target vocabulary; empty for kind ``NONE``.
        kind: how the tokens were drawn.
        source: name of the proposer ("draft", "ngram", ...), for counters only.
        origin: position in a pushed block, if the tokens came from one.
    """

    base_len: int
    tokens: tuple[int, ...] = ()
    kind: ProposalKind = ProposalKind.NONE
    source: str = "none"
    origin: BlockOrigin | None = field(default=None, compare=False)

    @property
    def fingerprint(self) -> int:
        """u32 over (base_len, tokens); names this proposal in blocks and law frames."""
        return fingerprint(self.base_len, self.tokens)

    def shortened(self, n: int) -> Proposal:
        """The first ``n`` tokens of this proposal, or all of it; of kind ``NONE`` if nothing is left."""
        if n >= len(self.tokens):
            return self
        if n <= 0:
            return Proposal(self.base_len)
        return Proposal(self.base_len, self.tokens[:n], self.kind, self.source, self.origin)


def shard_of(kept: int, proposed: int, shards: int) -> int:
    """Which of ``shards`` drafts guesses the outcomes that keep ``kept`` of ``proposed`` tokens.

    In turn; the full length, which is likely, goes to the last one, not to the one that has the likely length 0.
    """
    return shards - 1 if kept == proposed > 0 else kept % shards


def fingerprint(base_len: int, tokens: Sequence[int]) -> int:
    """u32 checksum of a proposal: CRC-32 of little-endian ``base_len`` (u64) followed by the ids (u32)."""
    return zlib.crc32(struct.pack(f"<Q{len(tokens)}I", base_len, *tokens))
