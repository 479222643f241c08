"""Which rows run: batching, chunks, admission by blocks, preemption, shared prompts. No forward is run."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from support.target_rig import Rig, request

from ssd_cluster.model.kv import BlockPool
from ssd_cluster.target.scheduler import Row, Scheduler
from ssd_cluster.target.sequence import Choice
from ssd_cluster.types import Mode, Proposal, ProposalKind

BLOCK = 8


class Queue:
    """A scheduler over real choices, advanced as the round loop would."""

    def __init__(self, rig: Rig, blocks: int, **settings: int | bool) -> None:
        self._admission = rig.engine(Mode.AR)._admission
        self.pool = rig.runner.pool = BlockPool(blocks, BLOCK, True)
        fields = {"max_batch": 4, "step_tokens": 64, "prefill_chunk": 32, "share_prompts": True} | settings
        self.scheduler = Scheduler(self.pool, **fields)  # type: ignore[arg-type]

    def add(self, name: str, prompt: Iterable[int], *, priority: int = 0, n: int = 1, max_tokens: int = 20) -> None:
        one = request(name, prompt, priority=priority, n=n, max_tokens=max_tokens)
        for choice in self._admission.build(one, lambda event: None, 0.0).choices:
            self.scheduler.add(choice)

    def step(self) -> dict[str, Row]:
        """Plan, then pretend that every deciding row emitted one token."""
        rows = self.scheduler.plan()
        for row in rows:
            choice = row.choice
            assert len(choice.blocks.table) * BLOCK >= choice.blocks.length + row.n_tokens
            if row.decides:
                choice.tokens.append(60)
            end = len(choice.tokens) - 1 if row.decides else choice.blocks.length + row.n_run
            choice.blocks.advance(choice.tokens[choice.blocks.length : end])
            choice.blocks.truncate(end)
        return {name(row.choice): row for row in rows}

    def running(self) -> list[str]:
        return [name(choice) for choice in self.scheduler.running]

    def waiting(self) -> list[str]:
        return [name(choice) for choice in self.scheduler.waiting]


def name(choice: Choice) -> str:
    index = f".{choice.index}" if choice.live.request.params.n > 1 else ""
    return choice.live.request.request_id + index


def prompt(n: int, start: int = 5) -> range:
    return range(start, start + n)


def test_prompts_are_prefilled_in_chunks_beside_running_decodes(rig: Rig) -> None:
    queue = Queue(rig, 64)
    queue.add("short", prompt(10))
    assert queue.step()["short"].decides
    queue.add("long", prompt(80, 100))
    seen = [queue.step() for _ in range(3)]
    assert [rows["long"].n_run for rows in seen] == [32, 32, 16]
    assert [rows["long"].decides for rows in seen] == [False, False, True]
    assert all(rows["short"].n_tokens == 1 and rows["short"].decides for rows in seen)


def test_a_forward_stays_within_step_tokens(rig: Rig) -> None:
    queue = Queue(rig, 64, step_tokens=20, prefill_chunk=16)
    for index in range(4):
        queue.add(f"r{index}", prompt(40, 5 + 40 * index))
    for _ in range(20):
        assert sum(row.n_tokens for row in queue.step().values()) <= 20
    assert len(queue.running()) == 4


def test_proposals_shrink_before_they_exceed_the_step(rig: Rig) -> None:
    queue = Queue(rig, 64, step_tokens=8)
    queue.add("a", prompt(6))
    queue.add("b", prompt(6, 50))
    while len(queue.running()) < 2 or any(choice.pending > 1 for choice in queue.scheduler.running):
        queue.step()
    for choice in queue.scheduler.running:
        choice.proposal = Proposal(len(choice.tokens), (1, 2, 3, 4, 5), ProposalKind.DELTA)
    rows = queue.scheduler.plan()
    assert [row.n_proposed for row in rows] == [5, 1]
    assert rows[1].proposed == (1,)


def test_waiting_goes_by_priority_then_arrival(rig: Rig) -> None:
    queue = Queue(rig, 64, max_batch=1)
    for name_, priority in (("first", 0), ("second", 0), ("urgent", 5), ("low", -1)):
        queue.add(name_, prompt(4), priority=priority)
    order = []
    for _ in range(4):
        queue.step()
        order += queue.running()
        queue.scheduler.remove(queue.scheduler.running[0])
    assert order == ["urgent", "first", "second", "low"]


def test_admission_waits_for_free_blocks_and_does_not_skip_the_head(rig: Rig) -> None:
    queue = Queue(rig, 6)
    queue.add("a", prompt(20))
    queue.step()
    queue.add("big", prompt(24, 60))
    queue.add("small", prompt(2, 200))
    queue.step()
    assert queue.running() == ["a"]
    assert queue.waiting() == ["big", "small"]


def test_the_youngest_is_preempted_and_keeps_its_output_and_its_place(rig: Rig) -> None:
    queue = Queue(rig, 6)
    queue.add("old", prompt(15), max_tokens=30)
    queue.add("young", prompt(15, 60), max_tokens=30)
    for _ in range(3):
        queue.step()
    young = queue.scheduler.running[1]
    while len(queue.running()) == 2:
        queue.step()
    queue.add("later", prompt(2, 200))
    assert queue.running() == ["old"]
    assert queue.waiting() == ["young", "later"]
    assert queue.scheduler.take_preemptions() == 1
    assert young.blocks.table == []
    assert young.prompt_len == 15
    assert young.n_left == 30 - (len(young.tokens) - 15)
    queue.scheduler.remove(queue.scheduler.running[0])
    row = queue.step()["young"]
    assert row.n_run + row.choice.blocks.length >= len(young.tokens) - 1
    assert row.decides


def test_low_priority_is_preempted_first_even_if_older(rig: Rig) -> None:
    queue = Queue(rig, 6)
    queue.add("low", prompt(15), priority=-1, max_tokens=30)
    queue.step()
    queue.add("high", prompt(15, 60), max_tokens=30)
    queue.step()
    assert queue.running() == ["high", "low"]
    while len(queue.running()) == 2:
        queue.step()
    assert queue.running() == ["high"]


def test_a_proposal_is_given_up_before_anyone_is_preempted(rig: Rig) -> None:
    queue = Queue(rig, 2)
    queue.add("a", prompt(7), max_tokens=9)
    queue.step()
    queue.add("b", prompt(6, 60), max_tokens=9)
    choice = queue.scheduler.running[0]
    taken = queue.pool.allocate(1)
    choice.proposal = Proposal(8, (1, 2, 3), ProposalKind.DELTA)
    row = queue.scheduler.plan()[0]
    assert row.n_proposed == 0
    assert queue.running() == ["a"]
    queue.pool.free(taken)


def test_choices_of_a_request_share_the_blocks_of_its_prompt(rig: Rig) -> None:
    queue = Queue(rig, 64, prefill_chunk=16)
    queue.add("r", prompt(40), n=3)
    first = queue.step()
    assert list(first) == ["r.0"], "siblings wait for the first to prefill"
    queue.step()
    queue.step()
    rows = queue.step()
    assert set(rows) == {"r.0", "r.1", "r.2"}
    tables = [choice.blocks.table[: 32 // BLOCK] for choice in queue.scheduler.running]
    assert tables[0] == tables[1] == tables[2]
    used = queue.pool.n_total - queue.pool.n_free
    assert used < 3 * (48 // BLOCK)


def test_removing_choices_gives_every_block_back(rig: Rig) -> None:
    queue = Queue(rig, 16)
    for index in range(6):
        queue.add(f"r{index}", prompt(20, 5 + index), n=2)
    for _ in range(12):
        queue.step()
    for choice in [*queue.scheduler.running, *queue.scheduler.waiting]:
        queue.scheduler.remove(choice)
    assert queue.pool.n_free == queue.pool.n_total
    queue.pool.check()


@pytest.mark.parametrize("blocks", [5, 6, 7, 9])
def test_everything_ends_however_small_the_pool(rig: Rig, blocks: int) -> None:
    queue = Queue(rig, blocks, prefill_chunk=8, step_tokens=16)
    for index in range(5):
        queue.add(f"r{index}", prompt(10 + index, 5 + 20 * index), max_tokens=20)
    for _ in range(2000):
        queue.step()
        for choice in list(queue.scheduler.running):
            if choice.n_left <= 0:
                queue.scheduler.remove(choice)
        if not queue.scheduler.running and not queue.scheduler.waiting:
            break
    assert not queue.running()
    assert not queue.waiting()
    assert queue.pool.n_free == blocks
