"""Many targets on one draft: one forward for all, fair shares, and what is shed under load."""

from __future__ import annotations

from collections import Counter

import pytest
from support.toy_draft import FakeClock, Rig, ToyRunner

from ssd_cluster.draft.scheduler import Demand, RowKind, Scheduler
from ssd_cluster.link.messages import Load, Nack, NackCode, Next
from ssd_cluster.model.batch import CausalSpan, TreeSpan


def tree(session: str, target: str = "a", rows: int = 8, deadline: float = 1.0, **changes: object) -> Demand[str]:
    return Demand(session, target, RowKind.TREE, rows, deadline_s=deadline, **changes)


def jit(session: str, rows: int = 1, deadline: float = 9.0) -> Demand[str]:
    return Demand(session, "a", RowKind.JIT, rows, rows, deadline)


def prefill(session: str, rows: int = 500, target: str = "a", since: float = 0.0) -> Demand[str]:
    return Demand(session, target, RowKind.PREFILL, rows, deadline_s=since)


def grants(scheduler: Scheduler, *demands: Demand[str]) -> dict[str, int]:
    return {demand.session: rows for demand, rows in scheduler.grant(demands)}


def test_everything_runs_when_it_fits() -> None:
    assert grants(Scheduler(64, 256), tree("x"), tree("y", "b"), jit("z")) == {"x": 8, "y": 8, "z": 1}
    assert Scheduler(64, 256).grant([]) == []


def test_just_in_time_comes_first_then_the_earliest_deadline() -> None:
    scheduler = Scheduler(10, 256)
    assert grants(scheduler, tree("late", deadline=2.0), tree("soon", deadline=1.0), jit("now", 3)) == {
        "now": 3,
        "soon": 7,
    }


def test_overdue_and_pushed_gives_way_to_a_first_block() -> None:
    assert grants(Scheduler(8, 256), tree("pushed", deadline=0.1, late=True), tree("new", deadline=5.0)) == {"new": 8}


def test_glue_is_not_split_and_an_oversized_one_runs_alone() -> None:
    glue = tree("glue", rows=6, least=6)
    assert grants(Scheduler(10, 256), tree("x", rows=8, deadline=0.5), glue) == {"x": 8}
    assert grants(Scheduler(4, 256), glue) == {"glue": 6}
    assert grants(Scheduler(4, 256), jit("wide", 6)) == {"wide": 6}


def test_prefill_alone_takes_a_whole_chunk_and_beside_trees_what_is_left() -> None:
    scheduler = Scheduler(64, 256)
    assert grants(scheduler, prefill("p")) == {"p": 256}
    assert grants(scheduler, prefill("p"), tree("x")) == {"x": 8, "p": 56}
    assert grants(scheduler, prefill("p"), tree("x", rows=200)) == {"x": 48, "p": 16}
    assert grants(scheduler, prefill("p", rows=3), tree("x", rows=200)) == {"x": 61, "p": 3}


def test_weights_are_by_the_name_of_a_target_or_by_the_id_of_one_replica() -> None:
    scheduler = Scheduler(64, 256, {"llama-70b": 2.0, "qwen-0000000b": 3.0})
    assert [scheduler.weight(f"llama-70b-0000000{i}") for i in range(2)] == [2.0, 2.0]
    assert [scheduler.weight(f"qwen-0000000{i}") for i in "ab"] == [1.0, 3.0]
    scheduler.weights = {"qwen": 5.0}
    assert (scheduler.weight("llama-70b-00000000"), scheduler.weight("qwen-0000000a")) == (1.0, 5.0)


def test_targets_share_a_full_step_by_weight() -> None:
    crowd = [tree(f"a{i}", "a", 16, 0.1) for i in range(10)] + [tree("b", "b", 16, 0.9)]
    even = grants(Scheduler(20, 256), *crowd)
    assert even["b"] == 10
    weighted = grants(Scheduler(20, 256, {"a": 4.0}), *crowd)
    assert weighted["b"] == 4


def test_a_span_that_does_not_fit_its_targets_share_is_not_taken_out_of_anothers() -> None:
    """Three spans of 6 have a share of 14 of 20, and come first by their deadlines: the small target keeps its 6."""
    crowd = [Demand(f"a{i}", "a", RowKind.TREE, 6, 6, 0.1) for i in range(3)]
    small = Demand("b", "b", RowKind.TREE, 6, 6, 0.9)
    assert grants(Scheduler(20, 256), *crowd, small) == {"a0": 6, "a1": 6, "b": 6}
    assert grants(Scheduler(24, 256), *crowd, small) == {"a0": 6, "a1": 6, "a2": 6, "b": 6}
    assert grants(Scheduler(8, 256), *crowd[:1], small) == {"a0": 6}, "what nobody's share covers goes by deadline"


def test_small_steps_are_fair_over_time() -> None:
    scheduler = Scheduler(2, 256)
    served: Counter[str] = Counter()
    for _ in range(100):
        for target, rows in grants(scheduler, *(tree(t, t, 4) for t in "abc")).items():
            served[target] += rows
    assert sum(served.values()) == 200
    assert max(served.values()) - min(served.values()) <= 6


def test_two_targets_share_one_forward() -> None:
    rig = Rig()
    first, second = rig.target("a"), rig.target("b")
    first.open(1)
    second.open(1, tokens=(9, 9), seed=3, temperature=0.0)
    rig.settle()
    first.take(), second.take()
    before = len(rig.runner.batches)
    first.commit(3, (9,), proposal=(20, 21))
    second.commit(2, (9,), proposal=(22,), rows=5)
    rig.settle()
    batches = rig.runner.batches[before:]
    assert len(batches) == 4
    assert all(len(batch.spans) == 2 for batch in batches)
    assert [type(span) for span in batches[0].spans] == [CausalSpan, CausalSpan]
    assert [type(span) for span in batches[1].spans] == [TreeSpan, TreeSpan]
    assert first.blocks()[-1].branches
    assert len(second.blocks()[-1].branches) == 5


def test_prefill_runs_beside_trees_without_stopping_them() -> None:
    rig = Rig(ToyRunner(FakeClock(), blocks=200, context=400), max_step_rows=16)
    target = rig.target()
    target.open(1, max_len=300)
    rig.settle()
    target.open(2, tokens=tuple(i % 50 for i in range(200)), max_len=300)
    rig.engine.step()  # alone: a whole chunk would fit, so the prompt is through at once
    target.commit(3, (9,), session=1)
    target.open(3, tokens=tuple(i % 49 for i in range(200)), max_len=300)
    before = len(rig.runner.batches)
    complete = False
    while not complete and len(rig.runner.batches) - before < 20:
        rig.engine.step()
        complete = any(b.base_len == 4 and len(b.branches[0].tokens) == 3 for b in target.blocks())
    batches = rig.runner.batches[before:]
    assert len(batches) == 4  # glue and three depths, as if alone
    for batch in batches:
        assert batch.n_tokens <= 16
        assert batch.spans[-1].n_logits == 0
        assert len(batch.spans[-1].tokens) >= 4


def test_row_credit_is_split_over_targets_and_told_on_change() -> None:
    rig = Rig(row_credit=100, session_credit=10, target_weights={"big": 3.0})
    first = rig.target("big")
    rig.settle()
    assert [(m.row_credit, m.session_credit) for m in first.of(Load)] == [(100, 10)]
    second = rig.target("small")
    rig.settle()
    assert [(m.row_credit, m.session_credit) for m in first.of(Load)] == [(75, 7)]
    assert [(m.row_credit, m.session_credit) for m in second.of(Load)] == [(25, 2)]
    rig.settle()
    assert not first.of(Load)
    rig.clock.advance(1.5)
    rig.engine.step()
    assert len(first.of(Load)) == 1
    second.stream.close("gone")
    rig.settle()
    assert [m.row_credit for m in first.of(Load)] == [100]


def test_crowd_of_trees_loses_breadth_first() -> None:
    rig = Rig(max_step_rows=12)
    target = rig.target()
    for session in range(4):
        target.open(session, tokens=(session, 5))
    rig.settle()
    target.take()
    for session in range(4):
        target.commit(2, (9,), session=session, rows=12)
    rig.settle()
    last = {block.session: block for block in target.blocks()}
    assert [len(last[s].branches) for s in range(4)] == [3, 3, 3, 3]
    assert all(len(branch.tokens) == 3 for block in last.values() for branch in block.branches)


def test_a_crowd_of_one_target_takes_no_branch_from_a_small_one() -> None:
    rig = Rig(max_step_rows=12, row_credit=200)
    crowd, small = rig.target("crowd"), rig.target("small")
    for session in range(4):
        crowd.open(session, tokens=(session, 5))
    small.open(9, tokens=(9, 5))
    rig.settle()
    crowd.take(), small.take()
    for session in range(4):
        crowd.commit(2, (9,), session=session, rows=12)
    small.commit(2, (9,), session=9, rows=6)
    rig.settle()
    last = {block.session: block for block in (*crowd.blocks(), *small.blocks())}
    assert [len(last[s].branches) for s in (0, 1, 2, 3, 9)] == [1, 1, 1, 1, 6]


def test_row_credit_of_one_target_bounds_its_trees() -> None:
    rig = Rig(row_credit=8)
    target = rig.target()
    for session in range(2):
        target.open(session, tokens=(session, 5), rows=16)
    rig.settle()
    last = {block.session: block for block in target.blocks()}
    assert [len(block.branches) for block in last.values()] == [4, 4]


def test_lasting_starvation_sheds_the_least_wanted_session() -> None:
    """Nine sessions that commit after every step on a draft that runs one of them per step."""
    rig = Rig(max_step_rows=2)
    target = rig.target()
    lengths = dict.fromkeys(range(9), 2)
    for session in lengths:
        target.open(session, tokens=(session, 5), priority=session)
    refused: list[tuple[int, NackCode]] = []
    for _ in range(30):
        for session in lengths:
            target.commit(lengths[session], (9,), session=session, rows=8, due_us=1_000_000, next=Next.NONE)
            lengths[session] += 1
        rig.engine.step()
        refused += [(m.session, m.code) for m in target.of(Nack)]
    assert refused
    assert refused[0] == (0, NackCode.BUSY)
    assert {code for _, code in refused} <= {NackCode.BUSY, NackCode.UNKNOWN}


def test_a_slow_draft_without_a_crowd_is_no_overload() -> None:
    """Nothing is ever pushed in time, but no row had to wait for others: refusing a session would not help."""
    rig = Rig()
    target = rig.target()
    target.open(1)
    target.open(2)
    for length in range(3, 90):
        for session in (1, 2):
            target.commit(length, (9,), session=session, next=Next.WAIT, k=8)
        rig.engine.step()
    assert not target.of(Nack)
    assert rig.engine.n_sessions == 2


@pytest.mark.parametrize("rows", [1, 3])
def test_load_reports_the_step_time(rows: int) -> None:
    rig = Rig(ToyRunner(FakeClock(), base_s=0.004, row_s=0.001))
    rig.engine.calibrate()
    target = rig.target()
    target.open(rows=rows)
    rig.engine.step()
    rig.clock.advance(2)
    rig.engine.step()
    (load,) = target.of(Load)[-1:]
    assert load.step_us == pytest.approx(4000 + 1000 * rows, rel=0.05)
