"""The KV pages of one session: which committed positions are valid, and room for what is only proposed.

Invariant: pages hold valid keys and values of a prefix of the committed tokens that ends before the last one. The last
committed token is always run again with the proposal behind it (the glue span), so a page is never written once it is
sealed, and nothing speculative is ever sealed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ssd_cluster.draft.transcript import common_prefix
from ssd_cluster.model.kv import BlockPool, SequenceBlocks


class SessionPages:
    """Pages of one session.

    Args:
        pool: the draft's block pool.
        tokens: committed tokens; a cached prefix of them is attached at once.
    """

    def __init__(self, pool: BlockPool, tokens: Sequence[int]) -> None:
        self._blocks = SequenceBlocks(pool)
        self._written: list[int] = []
        self._blocks.attach_prefix(tokens)

    @property
    def valid(self) -> int:
        """Committed positions whose keys and values are in the pages."""
        return self._blocks.length

    @property
    def table(self) -> list[int]:
        """Page ids, first position first."""
        return self._blocks.table

    def ensure(self, positions: int) -> None:
        """Make room for this many positions.

        Raises:
            OutOfBlocks: the pool is full; nothing was taken.
        """
        self._blocks.ensure(positions)

    def wrote(self, start: int, tokens: Sequence[int]) -> None:
        """Keys and values of ``tokens`` now stand at ``start`` and after, committed or not."""
        offset = start - self._blocks.length
        self._written[offset:] = tokens

    def settle(self, committed: Sequence[int]) -> None:
        """What was written and is committed text by now becomes valid, except for the last committed token.

        The rest of what was written stays known until it is overwritten: text is append-only, so a rejected token never
        becomes valid later. Pages ensured beyond the valid part stay too: the next glue span writes there.
        """
        start = self._blocks.length
        kept = common_prefix(self._written, committed[start : len(committed) - 1])
        if kept:
            self._blocks.advance(committed[start : start + kept])
            del self._written[:kept]

    def release(self) -> None:
        """Give all pages back."""
        self._written.clear()
        self._blocks.release()
