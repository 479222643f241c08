"""Anytime blocks under a fake clock: one forward of the toy model takes 10 ms."""

from __future__ import annotations

import pytest
from support.toy_draft import Rig, ScriptedTarget, sequential

from ssd_cluster.link.messages import Block, BlockBatch, Next, Pull


def opened(**changes: object) -> tuple[Rig, ScriptedTarget]:
    """A session of three tokens whose first block is out; the step time is known to the engine."""
    rig = Rig()
    rig.engine.calibrate()
    target = rig.target()
    target.open(**changes)
    rig.settle()
    target.take()
    return rig, target


def depths(block: Block) -> list[int]:
    return [len(branch.tokens) for branch in block.branches]


def test_complete_tree_is_pushed_once_and_before_its_deadline() -> None:
    rig, target = opened()
    start = rig.clock.now
    target.commit(3, (9,), due_us=1_000_000)
    rig.settle()
    (block,) = target.blocks()
    assert depths(block) == [3] * 6
    assert rig.clock.now - start == pytest.approx(0.04)
    assert rig.count("ssd:draft_blocks_total", completeness="full") == 2


def test_what_exists_leaves_before_the_step_that_would_cross_the_deadline() -> None:
    rig, target = opened()
    start = rig.clock.now
    target.commit(3, (9,), due_us=35_000)
    times = []
    for _ in range(10):
        rig.engine.step()
        times += [(rig.clock.now - start, depths(block)) for block in target.blocks()]
    # glue ends at 10 ms, rows at 20, 30 and 40 ms; the last one would end after the deadline, so depth 2 leaves before.
    assert [d for _, d in times] == [[2] * 6, [3] * 6]
    assert rig.count("ssd:draft_blocks_total", completeness="partial") >= 1


def test_what_is_due_counts_from_arrival_not_from_the_step_that_takes_it_in() -> None:
    rig, target = opened()
    target.commit(3, (9,), due_us=35_000)
    rig.clock.advance(0.012)  # a forward was running
    rig.settle()
    # Glue ends at 22 ms, rows at 32, 42 and 52 ms: the first that would end after 35 ms finds depth 1.
    assert depths(target.blocks()[0]) == [1] * 6


def test_overdue_tree_is_pushed_after_every_step() -> None:
    rig, target = opened()
    target.commit(3, (9,), due_us=0)
    rig.settle()
    blocks = target.blocks()
    assert [depths(block)[0] for block in blocks] == [0, 1, 2, 3]
    assert [block.block_seq for block in blocks] == sorted(block.block_seq for block in blocks)
    assert len({block.block_seq for block in blocks}) == 4


def test_crowded_tree_grows_where_it_gains_most() -> None:
    """A waiting target takes a row of every step: the tree beside it goes on without its least likely branch."""
    rig = Rig(max_step_rows=4)
    target = rig.target()
    target.open(1)
    target.open(2)
    rig.settle()
    target.take()
    target.commit(3, (9,), session=1, rows=4, due_us=10_000_000)
    rig.engine.step()
    target.commit(3, (9,), session=2, rows=0, next=Next.WAIT)
    rig.engine.step()
    tree = next(s for s in rig.engine._table.sessions() if s.id == 1)
    assert tree.build is not None
    assert [len(branch.tokens) for branch in tree.build.branches] == [1, 1, 1, 0]
    assert tree.build.passed_over


def test_pull_brings_what_exists_and_repeats_a_lost_block() -> None:
    rig, target = opened()
    target.commit(3, (9,), due_us=10_000_000)
    rig.engine.step()
    rig.engine.step()
    assert not target.blocks()
    target.stream.send(Pull(1, 1, 4, 3, 5_000))
    rig.engine.step()
    assert depths(target.blocks()[0])[0] == 1
    rig.settle()
    last = target.blocks()[-1]
    target.stream.send(Pull(1, 1, 4, 3, 5_000))
    rig.engine.step()
    (again,) = target.blocks()
    assert again.branches == last.branches
    assert again.block_seq > last.block_seq


@pytest.mark.parametrize("wrong", [{"epoch": 0}, {"base_len": 3}, {"session": 2}])
def test_pull_for_something_else_is_dropped(wrong: dict[str, int]) -> None:
    rig, target = opened()
    target.commit(3, (9,), due_us=10_000_000)
    rig.settle()
    target.take()
    target.stream.send(Pull(**({"session": 1, "epoch": 1, "base_len": 4, "k": 3, "deadline_us": 0} | wrong)))
    rig.settle()
    assert not target.blocks()
    assert rig.count("ssd:draft_dropped_total", reason="old_pull") == 1


def test_chain_leaves_at_its_deadline_with_what_exists_and_ends() -> None:
    rig, target = opened()
    reference = rig.reference(target.open(session=5))
    rig.settle()
    target.take()
    target.commit(3, (9,), next=Next.WAIT, k=6, deadline_us=35_000)
    steps = rig.settle()
    (block,) = target.blocks()
    (branch,) = block.branches
    chain = [branch.t_star, *branch.tokens]
    assert chain == sequential((3, 4, 5, 9), 3, reference)
    assert steps <= 4


def test_chain_without_a_token_at_its_deadline_sends_its_first_one() -> None:
    rig, target = opened()
    target.commit(3, (9,), next=Next.WAIT, k=6, deadline_us=1)
    rig.settle()
    (block,) = target.blocks()
    assert len(block.branches[0].tokens) == 0


def test_blocks_of_one_target_share_a_frame() -> None:
    rig, target = opened()
    target.open(session=2)
    target.open(session=3)
    rig.settle()
    frames = [message for message in target.take() if isinstance(message, BlockBatch)]
    assert [{block.session for block in frame.blocks} for frame in frames] == [{2, 3}] * len(frames)


def test_target_that_is_earlier_than_it_says_gets_its_blocks_earlier() -> None:
    """Outcomes come 30 ms after a commit that says 45 ms; the complete tree takes 60 ms."""
    rig, target = opened(k=5)
    reached = []
    for length in range(3, 60):
        target.commit(length, (9,), due_us=45_000, k=5)
        end = rig.clock.now + 0.0299
        while rig.clock.now < end:
            rig.engine.step()
        reached.append(max((depths(block)[0] for block in target.blocks() if block.base_len == length + 1), default=-1))
    assert reached[0] == -1
    assert reached[-1] == 2
