"""Commits that arrive while work is under way: superseding, re-rooting, what is kept and what is learned."""

from __future__ import annotations

from support.toy_draft import Rig, ScriptedTarget, sequential

from ssd_cluster.draft.session import Session
from ssd_cluster.link.messages import CommitBatch, Next, Open
from ssd_cluster.types import fingerprint


def opened(**changes: object) -> tuple[Rig, ScriptedTarget, Open]:
    rig = Rig()
    target = rig.target()
    message = target.open(**changes)
    rig.settle()
    return rig, target, message


def only(rig: Rig) -> Session:
    (session,) = rig.engine._table.sessions()
    return session


def test_commit_cancels_the_tree_at_the_next_step_boundary() -> None:
    rig, target, _ = opened()
    target.commit(3, (9,), due_us=10_000_000)
    rig.engine.step()
    rig.engine.step()
    taken = rig.free_tails - rig.runner.tails.n_free
    assert taken == 6
    target.take()
    target.commit(4, (10,), due_us=10_000_000)
    rig.engine.step()
    assert [span.start for span in rig.runner.batches[-1].spans] == [4]
    rig.settle()
    assert [block.base_len for block in target.blocks()] == [5]
    assert rig.leaks()[1] == 0


def test_queued_commits_are_merged_and_only_the_newest_is_built() -> None:
    rig, target, _ = opened()
    target.take()
    rows = [target.row(3, (9,), proposal=(20,)), target.row(4, (20, 11)), target.row(6, (12,), proposal=(30, 31))]
    for row in rows:
        target.stream.send(CommitBatch((row,)))
    before = len(rig.runner.batches)
    rig.settle()
    assert {(b.base_len, b.fingerprint) for b in target.blocks()} == {(7, fingerprint(7, (30, 31)))}
    (glue,) = rig.runner.batches[before].spans
    assert (glue.start, glue.tokens) == (3, [9, 20, 11, 12, 30, 31])


def test_glue_runs_only_what_the_pages_lack() -> None:
    """Kept tokens of the verified proposal stand in the pages already; t* and the new proposal do not."""
    rig, target, _ = opened()
    target.commit(3, (9,), proposal=(20, 21, 22))
    rig.settle()
    target.commit(4, (20, 21, 40), proposal=(50, 51))
    rig.engine.step()
    (glue,) = rig.runner.batches[-1].spans
    assert (glue.start, glue.tokens) == (6, [40, 50, 51])


def test_pages_hold_no_rejected_token() -> None:
    rig, target, message = opened()
    target.commit(3, (9,), proposal=(20, 21, 22))
    rig.settle()
    target.commit(4, (20, 33), rows=0)
    rig.settle()
    session = only(rig)
    assert session.valid == 5
    slots = rig.runner._slots(session.pages.table, session.valid)
    assert rig.runner.pages[slots].tolist() == [*message.tokens, 9, 20]


def test_late_block_becomes_the_chain_without_a_forward() -> None:
    """The outcome was guessed and drafted for, but its block was not out: the waiting target gets it at once."""
    rig, target, message = opened()
    target.commit(3, (9,), due_us=10_000_000)
    for _ in range(3):
        rig.engine.step()
    branch = only(rig).build.branches[0]
    assert len(branch.tokens) == 2
    target.take()
    before = len(rig.runner.batches)
    target.commit(4, (branch.t_star,), next=Next.WAIT, k=2)
    rig.settle()
    (block,) = target.blocks()
    assert len(rig.runner.batches) == before
    chain = [block.branches[0].t_star, *block.branches[0].tokens]
    assert chain == sequential((3, 4, 5, 9, branch.t_star), 2, rig.reference(message))


def test_chain_goes_on_from_what_the_tree_had_drafted() -> None:
    rig, target, message = opened()
    target.commit(3, (9,), due_us=10_000_000)
    for _ in range(3):
        rig.engine.step()
    branch = only(rig).build.branches[0]
    target.take()
    before = len(rig.runner.batches)
    target.commit(4, (branch.t_star,), next=Next.WAIT, k=5)
    rig.settle()
    (block,) = target.blocks()
    assert len(rig.runner.batches) - before == 3
    chain = [block.branches[0].t_star, *block.branches[0].tokens]
    assert chain == sequential((3, 4, 5, 9, branch.t_star), 5, rig.reference(message))


def test_branch_that_outran_its_block_seeds_the_next_tree() -> None:
    rig, target, message = opened(k=5)
    target.commit(3, (9,), due_us=10_000_000, k=5)
    for _ in range(5):
        rig.engine.step()
    branch = only(rig).build.branches[0]
    assert len(branch.tokens) == 4
    target.commit(4, (branch.t_star,), proposal=tuple(branch.tokens[:1]), k=5)
    target.take()
    rig.engine.step()
    rig.engine.step()
    block = target.blocks()[0]
    (seeded,) = [b for b in block.branches if (b.k, b.t_star) == (1, branch.tokens[1])]
    assert seeded.tokens == tuple(branch.tokens[2:4])
    rig.settle()
    final = target.blocks()[-1]
    (seeded,) = [b for b in final.branches if (b.k, b.t_star) == (1, branch.tokens[1])]
    prefix = (3, 4, 5, 9, branch.t_star, *branch.tokens[:2])
    assert list(seeded.tokens) == sequential(prefix, 5, rig.reference(message))


def test_fallback_tokens_the_draft_never_saw_do_not_disturb_it() -> None:
    rig, target, message = opened()
    target.commit(3, (9,), proposal=(20, 21))
    target.commit(4, (20, 21, 22, 23, 24, 25), rows=6)
    rig.settle()
    block = target.blocks()[-1]
    assert block.base_len == 10
    for branch in block.branches:
        prefix = (3, 4, 5, 9, 20, 21, 22, 23, 24, 25, branch.t_star)
        assert list(branch.tokens) == sequential(prefix, 3, rig.reference(message))


def test_outcomes_teach_the_planner_where_to_guess() -> None:
    """After many rounds that keep nothing and take the third guess, k = 0 gets the branches, up to the third guess."""
    rig, target, _ = opened(temperature=0.0, max_len=119, tokens=(3,))
    length = 1
    for _ in range(100):
        build = only(rig).build
        tokens = (build.guesses[0][2],)
        target.commit(length, tokens, proposal=(50, 51, 52), rows=6)
        length += 1
        rig.settle()
    counts = [sum(b.k == k for b in only(rig).build.branches) for k in range(4)]
    assert counts[0] >= 3
    assert counts[0] > max(counts[1:])


def test_rank_is_learned_from_the_guesses_of_the_round() -> None:
    rig, target, _ = opened(temperature=0.0)
    session = only(rig)
    observer = rig.engine._service._observer
    statistics = observer.statistics(session)
    before = statistics.rank_probabilities(True, 6)
    for length in range(3, 33):
        target.commit(length, (only(rig).build.guesses[0][4],), rows=6)
        rig.settle()
    after = statistics.rank_probabilities(True, 6)
    assert statistics.rounds == 30
    assert after[4] > before[4]
    assert after[0] < before[0]


def test_finish_and_close_free_the_session() -> None:
    rig, target, _ = opened()
    target.open(session=2)
    rig.settle()
    target.commit(3, (9,), finish=True)
    target.close(2)
    target.take()
    rig.settle()
    assert rig.engine.n_sessions == 0
    assert rig.leaks() == (0, 0)
    assert not target.blocks()
