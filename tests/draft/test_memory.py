"""KV pages and tail slots: eviction, rebuilding, refusals, and nothing lost over random histories."""

from __future__ import annotations

import random

import pytest
from support.toy_draft import VOCABULARY, FakeClock, Rig, ScriptedTarget, ToyRunner, sequential

from ssd_cluster.link.messages import CommitBatch, Nack, NackCode, Next, Opened


def rig_with(blocks: int, **changes: object) -> tuple[Rig, ScriptedTarget]:
    rig = Rig(ToyRunner(FakeClock(), blocks=blocks), **changes)
    return rig, rig.target()


def codes(target: ScriptedTarget) -> list[tuple[int, NackCode]]:
    return [(m.session, m.code) for m in target.of(Nack)]


def prompt(seed: int, length: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCABULARY) for _ in range(length))


def test_idle_session_is_evicted_told_once_and_rebuilt_on_its_next_commit() -> None:
    rig, target = rig_with(12)  # 48 positions
    first = target.open(1, tokens=prompt(1, 24))
    rig.settle()
    rig.clock.advance(2)
    target.open(2, tokens=prompt(2, 28))
    rig.settle()
    assert codes(target) == [(1, NackCode.EVICTED)]
    assert rig.engine.n_sessions == 2
    assert rig.count("ssd:draft_evictions_total") == 1
    rig.clock.advance(2)
    target.commit(24, (9,))
    rig.settle()
    messages = target.take()
    assert [(m.session, m.code) for m in messages if isinstance(m, Nack)] == [(2, NackCode.EVICTED)]
    block = messages[-1].blocks[-1]
    assert (block.session, block.base_len) == (1, 25)
    for branch in block.branches:
        prefix = (*first.tokens, 9, branch.t_star)
        assert list(branch.tokens) == sequential(prefix, 3, rig.reference(first))


def test_busy_when_nobody_is_idle() -> None:
    rig, target = rig_with(12)
    target.open(1, tokens=prompt(1, 24))
    rig.settle()
    target.open(2, tokens=prompt(2, 28))
    rig.settle()
    assert codes(target) == [(2, NackCode.BUSY)]
    assert rig.engine.n_sessions == 1
    target.commit(24, (9,))
    rig.settle()
    assert target.blocks()[-1].base_len == 25


def test_too_long_for_the_whole_pool() -> None:
    rig, target = rig_with(5)
    target.open(1, tokens=prompt(1, 30))
    rig.settle()
    assert codes(target) == [(1, NackCode.TOO_LONG)]
    assert rig.leaks() == (0, 0)


def test_growth_beyond_the_pool_ends_the_session_and_nothing_else() -> None:
    rig, target = rig_with(10, idle_s=100.0)
    target.open(1, tokens=prompt(1, 16))
    target.open(2, tokens=prompt(2, 12))
    rig.settle()
    target.commit(16, prompt(3, 20), session=1)
    rig.settle()
    assert codes(target) == [(1, NackCode.BUSY)]
    target.commit(12, (9,), session=2)
    rig.settle()
    assert target.blocks()[-1].session == 2


def test_tree_has_only_as_many_branches_as_there_are_tail_slots() -> None:
    rig = Rig(ToyRunner(FakeClock(), tails=5))
    target = rig.target()
    target.open(rows=16)
    target.open(2, rows=16)
    rig.settle()
    last = {block.session: block for block in target.blocks()}
    assert len(last[1].branches) == 5
    assert all(len(branch.tokens) == 3 for branch in last[1].branches)
    assert rig.leaks()[1] == 0
    target.commit(3, (9,), session=2, rows=16)
    rig.settle()
    assert len(target.blocks()[-1].branches) == 5


def test_prompt_is_run_before_anything_is_asked_for() -> None:
    """A synchronous target opens with rows = 0; its first chain must not wait for the prompt."""
    rig, target = rig_with(64)
    target.open(tokens=prompt(1, 60), rows=0)
    rig.settle()
    before = len(rig.runner.batches)
    target.commit(60, (9,), next=Next.WAIT, k=1)
    rig.settle()
    assert len(rig.runner.batches) == before + 1
    assert rig.runner.batches[-1].n_tokens == 2


def test_shared_prompt_is_run_once() -> None:
    rig, target = rig_with(64)
    target.open(1, tokens=prompt(1, 60))
    rig.settle()
    before = sum(batch.n_tokens for batch in rig.runner.batches)
    target.open(2, tokens=prompt(1, 60), rows=1, k=1)
    rig.settle()
    ran = sum(batch.n_tokens for batch in rig.runner.batches) - before
    assert ran == 4 + 1  # what follows the last full page of the prompt, and one tree row


def test_sessions_of_one_prompt_that_open_together_run_it_once() -> None:
    rig, target = rig_with(64)
    for session in range(4):
        target.open(session, tokens=prompt(1, 41), seed=session, rows=2, k=1)
    rig.settle()
    assert sum(batch.n_tokens for batch in rig.runner.batches) == 41 + 3 * 1 + 4 * 2
    assert {block.session for block in target.blocks() if block.branches[0].tokens} == {0, 1, 2, 3}


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_over_random_histories(seed: int) -> None:
    """Opens, commits, waits, garbage, closes, finishes and lost streams at random points, with steps in between."""
    rng = random.Random(seed)
    rig = Rig(ToyRunner(FakeClock(), blocks=40, tails=24), session_credit=12, idle_s=0.05, max_step_rows=12)
    targets = [rig.target(f"t{i}") for i in range(3)]
    lengths: dict[tuple[int, int], int] = {}
    for event in range(250):
        i = rng.randrange(3)
        target = targets[i]
        known = [session for (owner, session) in lengths if owner == i]
        action = rng.random()
        if action < 0.3 or not known:
            tokens = prompt(rng.randrange(6), rng.randrange(1, 40))
            target.open(event, tokens=tokens, rows=rng.randrange(12), temperature=rng.choice([0.0, 1.0]))
            lengths[i, event] = len(tokens)
        elif action < 0.75:
            session = rng.choice(known)
            new = prompt(event, rng.randrange(1, 4))
            wait = rng.random() < 0.3
            target.commit(
                lengths[i, session],
                new,
                session=session,
                proposal=() if wait else prompt(event + 1, rng.randrange(4)),
                finish=rng.random() < 0.1,
                due_us=rng.randrange(50_000),
                **({"next": Next.WAIT} if wait else {}),
            )
            lengths[i, session] += len(new)
        elif action < 0.85:
            row = target.row(rng.randrange(60), prompt(event, 2), session=rng.choice(known), epoch=rng.randrange(3))
            target.stream.send(CommitBatch((row, row)))
        elif action < 0.95:
            session = rng.choice(known)
            target.close(session)
            del lengths[i, session]
        else:
            target.stream.close("lost")
            targets[i] = rig.target(f"t{i}")
            lengths = {key: value for key, value in lengths.items() if key[0] != i}
        for _ in range(rng.randrange(4)):
            rig.engine.step()
            rig.runner.pool.check()
    for target in targets:
        target.stream.close("done")
    rig.settle()
    assert rig.engine.n_sessions == 0
    assert rig.leaks() == (0, 0)
    assert not rig.engine._table.active


def test_two_hundred_sessions_come_and_go() -> None:
    rig, target = rig_with(64)
    rng = random.Random(3)
    for session in range(200):
        target.open(session, tokens=prompt(session, rng.randrange(1, 50)))
        for _ in range(rng.randrange(6)):
            rig.engine.step()
        if rng.random() < 0.5:
            target.close(session)
        else:
            target.commit(0, (), session=session, finish=True)
    rig.settle()
    assert len([m for m in target.take() if isinstance(m, Opened)]) == 200
    assert rig.engine.n_sessions == 0
    assert rig.leaks() == (0, 0)
