"""Block bookkeeping: counts, runs, the prefix cache, and random histories that must never lose a block."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ssd_cluster.errors import OutOfBlocks
from ssd_cluster.model.kv import ROOT_HASH, BlockPool, SequenceBlocks, TailPool


def filled(pool: BlockPool, tokens: list[int]) -> SequenceBlocks:
    blocks = SequenceBlocks(pool)
    cached = blocks.attach_prefix(tokens)
    blocks.ensure(len(tokens))
    blocks.advance(tokens[cached:])
    return blocks


def test_allocate_is_all_or_nothing() -> None:
    pool = BlockPool(4, 2)
    taken = pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="2 KV blocks needed, 1 of 4 free"):
        pool.allocate(2)
    assert pool.n_free == 1
    pool.free(taken)
    assert pool.n_free == pool.n_total == 4


def test_double_free_is_an_error() -> None:
    pool = BlockPool(4, 2)
    taken = pool.allocate(1)
    pool.free(taken)
    with pytest.raises(ValueError, match="freed twice"):
        pool.free(taken)


def test_sequences_that_grow_in_turn_stay_on_ascending_runs() -> None:
    pool = BlockPool(64, 4)
    sequences = [SequenceBlocks(pool) for _ in range(4)]
    for length in range(1, 33):
        for blocks in sequences:
            blocks.ensure(length)
    for blocks in sequences:
        assert blocks.table == list(range(blocks.table[0], blocks.table[0] + 8))


def test_runs_form_again_when_the_pool_is_full_of_cached_blocks() -> None:
    pool = BlockPool(256, 4)
    for start in range(0, 16000, 400):
        filled(pool, list(range(start, start + 80))).release()
    blocks = SequenceBlocks(pool)
    for length in range(1, 49):
        blocks.ensure(length)
    breaks = sum(right != left + 1 for left, right in zip(blocks.table, blocks.table[1:], strict=False))
    assert breaks <= 2


def test_prefix_is_shared_in_full_blocks_only() -> None:
    pool = BlockPool(16, 4)
    first = filled(pool, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    second = SequenceBlocks(pool)
    assert second.attach_prefix([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]) == 8
    assert second.table == first.table[:2]
    assert second.length == 8
    third = SequenceBlocks(pool)
    assert third.attach_prefix([1, 2, 3, 4, 5, 6, 7, 0, 9]) == 4


def test_prefix_never_covers_the_whole_prompt() -> None:
    pool = BlockPool(16, 4)
    filled(pool, list(range(8)))
    assert SequenceBlocks(pool).attach_prefix(list(range(8))) == 4
    assert SequenceBlocks(pool).attach_prefix(list(range(9))) == 8
    assert SequenceBlocks(pool).attach_prefix(list(range(4))) == 0
    assert SequenceBlocks(pool).attach_prefix([]) == 0


def test_same_block_after_another_prefix_is_not_shared() -> None:
    pool = BlockPool(16, 2)
    filled(pool, [1, 2, 3, 4, 5])
    assert SequenceBlocks(pool).attach_prefix([9, 9, 3, 4, 5]) == 0


def test_released_blocks_stay_cached_until_they_are_needed() -> None:
    pool = BlockPool(4, 2)
    filled(pool, [1, 2, 3, 4, 5]).release()
    assert pool.n_free == 4
    again = SequenceBlocks(pool)
    assert again.attach_prefix([1, 2, 3, 4, 5]) == 4
    assert pool.n_free == 2
    again.release()
    pool.free(pool.allocate(4))
    assert SequenceBlocks(pool).attach_prefix([1, 2, 3, 4, 5]) == 0


def test_prefix_cache_can_be_off() -> None:
    pool = BlockPool(8, 2, prefix_cache=False)
    filled(pool, [1, 2, 3, 4, 5])
    assert SequenceBlocks(pool).attach_prefix([1, 2, 3, 4, 5]) == 0


def test_tokens_beyond_length_are_not_cached() -> None:
    pool = BlockPool(8, 2)
    blocks = filled(pool, [1, 2, 3])
    blocks.ensure(8)
    assert SequenceBlocks(pool).attach_prefix([1, 2, 3, 4, 5]) == 2
    blocks.advance([4])
    assert SequenceBlocks(pool).attach_prefix([1, 2, 3, 4, 5]) == 4


def test_advance_beyond_the_blocks_is_an_error() -> None:
    blocks = SequenceBlocks(BlockPool(8, 2))
    blocks.ensure(2)
    with pytest.raises(ValueError, match="3 positions do not fit 1 blocks"):
        blocks.advance([1, 2, 3])


def test_truncate_frees_blocks_and_takes_rewritten_ones_out_of_the_cache() -> None:
    pool = BlockPool(8, 4)
    blocks = filled(pool, list(range(10)))
    blocks.ensure(16)
    assert blocks.truncate(6) == 6
    assert len(blocks.table) == 2
    assert pool.n_free == 6
    assert SequenceBlocks(pool).attach_prefix(list(range(10))) == 4
    blocks.advance([77, 78])
    assert SequenceBlocks(pool).attach_prefix([0, 1, 2, 3, 4, 5, 77, 78, 0]) == 8


def test_truncate_inside_a_shared_block_drops_it() -> None:
    pool = BlockPool(8, 4)
    blocks = filled(pool, list(range(10)))
    other = filled(pool, list(range(10)))
    assert blocks.truncate(6) == 4
    assert blocks.length == 4
    assert other.length == 10
    assert SequenceBlocks(pool).attach_prefix(list(range(10))) == 8


def test_truncate_beyond_length_keeps_what_is_asked_for() -> None:
    pool = BlockPool(8, 4)
    blocks = filled(pool, list(range(5)))
    blocks.ensure(20)
    assert blocks.truncate(9) == 5
    assert len(blocks.table) == 3


def test_seal_returns_a_hash_of_the_whole_chain() -> None:
    pool = BlockPool(8, 2)
    block, other = pool.allocate(2)
    root = pool.seal(ROOT_HASH, [1, 2], block)
    assert pool.seal(root, [1, 2], other) != root
    assert BlockPool(8, 2).seal(ROOT_HASH, [1, 2], 0) == root


def test_tail_slots_are_all_or_nothing() -> None:
    tails = TailPool(3, 2, n_layers=1, n_kv_heads=1, head_dim=4, device=torch.device("cpu"))
    slots = tails.allocate(2)
    with pytest.raises(OutOfBlocks):
        tails.allocate(2)
    tails.free(slots)
    assert tails.n_free == tails.n_total == 3


class Histories(RuleBasedStateMachine):
    """Sequences over one pool with a model of what each page holds: no page is lost, none is written while shared."""

    @initialize(size=st.integers(1, 4), blocks=st.integers(4, 24))
    def start(self, size: int, blocks: int) -> None:
        self.pool = BlockPool(blocks, size)
        self.pages: dict[tuple[int, int], tuple[int, ...]] = {}
        self.live: list[tuple[SequenceBlocks, list[int]]] = []

    def write(self, blocks: SequenceBlocks, tokens: list[int], start: int) -> None:
        """Every position's content is the whole prefix that its keys and values depend on."""
        for position in range(start, len(tokens)):
            block, offset = blocks.table[position // self.pool.block_size], position % self.pool.block_size
            self.pages[block, offset] = tuple(tokens[: position + 1])

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def open(self, tokens: list[int]) -> None:
        blocks = SequenceBlocks(self.pool)
        cached = blocks.attach_prefix(tokens)
        assert cached < len(tokens)
        try:
            blocks.ensure(len(tokens))
        except OutOfBlocks:
            blocks.release()
            return
        self.write(blocks, tokens, cached)
        blocks.advance(tokens[cached:])
        self.live.append((blocks, tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), more=st.lists(st.integers(0, 1), max_size=5), rejected=st.integers(0, 3))
    def grow(self, data: st.DataObject, more: list[int], rejected: int) -> None:
        blocks, tokens = data.draw(st.sampled_from(self.live))
        try:
            blocks.ensure(len(tokens) + len(more) + rejected)
        except OutOfBlocks:
            return
        self.write(blocks, tokens + more + [5] * rejected, len(tokens))
        blocks.advance(more)
        tokens += more

    @precondition(lambda self: self.live)
    @rule(data=st.data(), share=st.floats(0, 1))
    def cut(self, data: st.DataObject, share: float) -> None:
        blocks, tokens = data.draw(st.sampled_from(self.live))
        asked = int(share * len(tokens))
        left = blocks.truncate(asked)
        assert asked - self.pool.block_size < left <= asked
        del tokens[left:]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        self.live.pop(index)[0].release()

    @invariant()
    def every_page_holds_its_sequence(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check()
        size = self.pool.block_size
        for blocks, tokens in self.live:
            assert blocks.length == len(tokens)
            for position in range(len(tokens)):
                page = self.pages[blocks.table[position // size], position % size]
                assert page == tuple(tokens[: position + 1])

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            for blocks, _ in self.live:
                blocks.release()
            assert self.pool.n_free == self.pool.n_total


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
