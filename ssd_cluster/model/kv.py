"""Paged KV cache: which block belongs to whom (pure bookkeeping), and the tensors that the blocks index."""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Sequence

import torch

from ssd_cluster.errors import OutOfBlocks

ROOT_HASH = b""
_EVICT_SHARE = 16


class BlockPool:
    """Reference-counted blocks with a prefix cache over full blocks.

    A block is in use (referenced), cached (unreferenced, but its tokens are known and may be asked for again) or free.
    Sequences get ascending runs of blocks where possible, with room to grow, because a sequence on one run is read
    without a copy.

    Attributes:
        n_total: number of blocks.
        block_size: positions per block.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool = True) -> None:
        self.n_total = num_blocks
        self.block_size = block_size
        self._prefix_cache = prefix_cache
        self._references = [0] * num_blocks
        self._is_free = bytearray(b"\1" * num_blocks)
        self._n_free = num_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()  # oldest first
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def n_free(self) -> int:
        """Blocks that ``allocate`` can hand out: free and cached ones."""
        return self._n_free + len(self._cached)

    def allocate(self, n: int, after: int | None = None) -> list[int]:
        """Take ``n`` blocks with one reference each, continuing the run that ends with block ``after`` if it can.

        Raises:
            OutOfBlocks: fewer than ``n`` are available; nothing is taken.
        """
        if n > self.n_free:
            raise OutOfBlocks(f"{n} KV blocks needed, {self.n_free} of {self.n_total} free")
        if n > self._n_free:
            self._evict(n - self._n_free)
        taken: list[int] = []
        if after is not None:
            while len(taken) < n and after + 1 < self.n_total and self._is_free[after + 1]:
                after += 1
                taken.append(after)
                self._is_free[after] = 0
        while len(taken) < n:
            for block in self._run(n - len(taken)):
                taken.append(block)
                self._is_free[block] = 0
        for block in taken:
            self._references[block] = 1
        self._n_free -= n
        return taken

    def _run(self, n: int) -> range:
        """Up to ``n`` free blocks of the longest free run; from its middle if a neighbour in front may want to grow."""
        longest = max(bytes(self._is_free).split(b"\0"), key=len)
        start = self._is_free.find(longest)
        if start > 0 and len(longest) > n:
            start += (len(longest) - n) // 2
        return range(start, start + min(n, len(longest)))

    def _evict(self, at_least: int) -> None:
        """Forget the oldest cached blocks, several at once so that they form runs."""
        for _ in range(min(len(self._cached), max(at_least, self.n_total // _EVICT_SHARE))):
            block, _ = self._cached.popitem(last=False)
            self.forget(block)
            self._is_free[block] = 1
            self._n_free += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block; the last block of a sequence becomes reusable first."""
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise ValueError(f"block {block} is freed twice")
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._is_free[block] = 1
                self._n_free += 1

    def match_prefix(self, tokens: Sequence[int]) -> tuple[list[int], int]:
        """Longest run of cached full blocks that ``tokens`` starts with: (blocks, positions they cover).

        Takes a reference on each block. Never covers all of ``tokens``: at least the last one is left to run.
        """
        blocks: list[int] = []
        parent = ROOT_HASH
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            parent = chain_hash(parent, tokens[start : start + self.block_size])
            block = self._block_of.get(parent)
            if block is None:
                break
            blocks.append(block)
        for block in blocks:
            self._references[block] += 1
            self._cached.pop(block, None)
        return blocks, len(blocks) * self.block_size

    def seal(self, parent: bytes, tokens: Sequence[int], block: int) -> bytes:
        """Register the full block that holds ``tokens`` after the chain ``parent``; return the chain's new hash.

        If another block holds the same chain already, that one stays the cached one.
        """
        digest = chain_hash(parent, tokens)
        if self._prefix_cache and digest not in self._block_of:
            self._block_of[digest] = block
            self._hash_of[block] = digest
        return digest

    def forget(self, block: int) -> None:
        """Take a block out of the prefix cache, because its contents are about to change."""
        digest = self._hash_of.pop(block, None)
        if digest is not None:
            del self._block_of[digest]

    def is_shared(self, block: int) -> bool:
        """Whether more than one sequence holds the block."""
        return self._references[block] > 1

    def check(self) -> None:
        """Verify that every block is counted exactly once.

        Raises:
            RuntimeError: the bookkeeping is broken.
        """
        for block, references in enumerate(self._references):
            states = (references > 0) + (block in self._cached) + self._is_free[block]
            if states != 1 or references < 0:
                raise RuntimeError(f"block {block}: {references} references, cached {block in self._cached}")
        if self._n_free != sum(self._is_free) or len(self._hash_of) != len(self._block_of):
            raise RuntimeError("free count or prefix cache out of step with the blocks")


def chain_hash(parent: bytes, tokens: Sequence[int]) -> bytes:
    """SHA-256 over the hash of everything before and the ids of one block."""
    return hashlib.sha256(parent + struct.pack(f"<{len(tokens)}q", *tokens)).digest()


class SequenceBlocks:
    """The block table of one sequence.

    Attributes:
        table: block ids; position p lies in ``table[p // block_size]``.
        length: positions whose keys and values are valid.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.table: list[int] = []
        self.length = 0
        self._pool = pool
        self._tokens: list[int] = []  # ids at the valid positions
        self._hashes: list[bytes] = []  # of the full blocks among them

    def attach_prefix(self, tokens: Sequence[int]) -> int:
        """Start with cached blocks of ``tokens``' prefix; return how many positions need not be run.

        Raises:
            ValueError: the sequence holds blocks already.
        """
        if self.table:
            raise ValueError("a prefix can only be attached to an empty sequence")
        self.table, cached = self._pool.match_prefix(tokens)
        self.advance(tokens[:cached])
        return cached

    def ensure(self, n_positions: int) -> None:
        """Own blocks for positions [0, n_positions).

        Raises:
            OutOfBlocks: the pool cannot give them; the sequence is unchanged.
        """
        needed = -(-n_positions // self._pool.block_size) - len(self.table)
        if needed > 0:
            self.table += self._pool.allocate(needed, after=self.table[-1] if self.table else None)

    def advance(self, tokens: Sequence[int]) -> None:
        """Keys and values of ``tokens`` are now valid at [length, length + n); blocks that fill up enter the cache.

        Only for tokens that are committed for good.

        Raises:
            ValueError: the positions are beyond the blocks owned.
        """
        size = self._pool.block_size
        if self.length + len(tokens) > len(self.table) * size:
            raise ValueError(f"{self.length + len(tokens)} positions do not fit {len(self.table)} blocks")
        self._tokens.extend(tokens)
        self.length = len(self._tokens)
        for start in range(len(self._hashes) * size, self.length - size + 1, size):
            parent = self._hashes[-1] if self._hashes else ROOT_HASH
            self._hashes.append(self._pool.seal(parent, self._tokens[start : start + size], self.table[start // size]))

    def truncate(self, length: int) -> int:
        """Drop the positions from ``length`` on and free the blocks that hold nothing else; return the positions left.

        That is ``length``, unless it ends inside a full block that another sequence reads too: such a block may not be
        written, so it is dropped whole and its positions must be run again.
        """
        size = self._pool.block_size
        whole, rest = divmod(length, size)
        if rest and whole < len(self._hashes):
            if self._pool.is_shared(self.table[whole]):
                length = whole * size
            else:
                self._pool.forget(self.table[whole])
        del self._hashes[whole:]
        del self._tokens[length:]
        self.length = len(self._tokens)
        keep = -(-length // size)
        self._pool.free(self.table[keep:])
        del self.table[keep:]
        return self.length

    def release(self) -> None:
        """Give every block back and start again empty."""
        self.truncate(0)


class PagedKV:
    """Keys and values of all layers.

    Attributes:
        data: [layers, blocks * block_size, 2, G, D]; entry 0 of the third axis holds keys, entry 1 values.
    """

    def __init__(
        self, n_layers: int, pool: BlockPool, n_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = pool.block_size
        shape = (n_layers, pool.n_total * pool.block_size, 2, n_kv_heads, head_dim)
        self.data = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def n_bytes(self) -> int:
        return self.data.numel() * self.data.element_size()


class TailPool:
    """Keys and values of speculation branches: every slot holds up to ``depth`` tokens that no page knows.

    Attributes:
        data: [layers, slots, depth, 2, G, D] float32: exact for any model dtype, and faster than bfloat16 for the many
            tiny products of tree attention.
    """

    def __init__(
        self, slots: int, depth: int, n_layers: int, n_kv_heads: int, head_dim: int, device: torch.device
    ) -> None:
        self.n_total = slots
        self.depth = depth
        self.data = torch.zeros((n_layers, slots, depth, 2, n_kv_heads, head_dim), device=device)
        self._blocks = BlockPool(slots, 1, prefix_cache=False)

    @property
    def n_free(self) -> int:
        return self._blocks.n_free

    def allocate(self, n: int) -> list[int]:
        """Take ``n`` slots.

        Raises:
            OutOfBlocks: fewer are free; nothing is taken.
        """
        return self._blocks.allocate(n)

    def free(self, slots: Sequence[int]) -> None:
        """Give slots back."""
        self._blocks.free(slots)
