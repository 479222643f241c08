"""Handshake, opens, epochs and what is answered, over the real codec."""

from __future__ import annotations

import pytest
from support.toy_draft import HASH, VOCABULARY, Rig

from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.messages import (
    BlockBatch,
    Close,
    CommitBatch,
    Hello,
    Load,
    Nack,
    NackCode,
    Next,
    Open,
    Opened,
    Welcome,
)
from ssd_cluster.link.stream import Inbox
from ssd_cluster.types import ProposalKind


def nacks(target: object) -> list[tuple[int, int, NackCode]]:
    return [(m.session, m.epoch, m.code) for m in target.of(Nack)]  # type: ignore[attr-defined]


def test_welcome_says_what_the_draft_is() -> None:
    rig = Rig(k_max=5, row_credit=100, session_credit=9)
    rig.engine.calibrate()
    target = rig.target()
    rig.settle()
    (welcome,) = target.of(Welcome)
    assert (welcome.k_max, welcome.row_credit, welcome.session_credit) == (5, 100, 9)
    assert (welcome.max_context, welcome.vocabulary, welcome.tokenizer_hash) == (120, VOCABULARY, HASH)
    assert welcome.step_time.base_us == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("hello", "names"),
    [
        (Hello("t", 1, "other", VOCABULARY), "tokenizer hash"),
        (Hello("t", 1, HASH, VOCABULARY + 1), "vocabulary"),
        (Hello("t", 1, HASH, VOCABULARY, protocol=2), "protocol"),
    ],
)
def test_mismatch_is_refused_with_its_first_difference(hello: Hello, names: str) -> None:
    rig = Rig()
    target = rig.target(hello=False)
    target.stream.send(hello)
    target.open()
    rig.settle()
    messages = target.take()
    assert isinstance(messages[0], Welcome)
    (nack,) = [m for m in messages if isinstance(m, Nack)]
    assert nack.code is NackCode.MISMATCH
    assert names in nack.detail
    assert rig.engine.n_sessions == 0


def test_nothing_counts_before_hello() -> None:
    rig = Rig()
    target = rig.target(hello=False)
    target.open()
    target.commit(3, (9,))
    rig.settle()
    assert not target.take()
    assert rig.count("ssd:draft_dropped_total", reason="before_hello") == 2


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tokens": (1, 60, 61)}, NackCode.BAD_TOKEN),
        ({"tokens": (1,) * 120}, NackCode.TOO_LONG),
        ({"kind": ProposalKind.DENSE}, NackCode.MISMATCH),
        ({"kind": ProposalKind.SPARSE}, NackCode.MISMATCH),
    ],
)
def test_open_that_cannot_be_served(changes: dict[str, object], code: NackCode) -> None:
    rig = Rig()
    target = rig.target()
    target.open(**changes)
    rig.settle()
    assert nacks(target) == [(1, 1, code)]
    assert rig.engine.n_sessions == 0
    assert rig.count("ssd:draft_nacks_total", code=code.value) == 1


@pytest.mark.parametrize(
    "changes", [{"tokens": ()}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"temperature": float("nan")}]
)
def test_nonsense_is_refused_without_a_codec_too(changes: dict[str, object]) -> None:
    """The in-process link hands messages over as they are."""
    rig = Rig()
    inbox = Inbox()
    stream, _ = pair(inbox, rig.inbox)
    stream.send(Hello("t", 1, HASH, VOCABULARY))
    values = {
        "session": 1,
        "epoch": 1,
        "tokens": (1, 2),
        "kind": ProposalKind.COUPLED,
        "temperature": 1.0,
        "seed": 1,
        "top_k": 0,
        "top_p": 1.0,
        "stop_ids": (),
        "max_len": 50,
        "k": 2,
        "rows": 2,
    }
    stream.send(Open(**(values | changes)))
    rig.settle()
    assert [m.session for _, m in inbox.drain() if isinstance(m, Nack)] == [1]
    assert rig.engine.n_sessions == 0


def test_sessions_beyond_the_credit_are_busy_until_one_leaves() -> None:
    rig = Rig(session_credit=2)
    target = rig.target()
    for session in (1, 2, 3):
        target.open(session)
    rig.settle()
    (nack,) = target.of(Nack)
    assert (nack.session, nack.code) == (3, NackCode.BUSY)
    assert nack.retry_after_ms > 0
    target.close(1)
    target.open(3, epoch=2)
    rig.settle()
    assert not nacks(target)
    assert rig.engine.n_sessions == 2


def test_sessions_that_their_target_forgot_make_room() -> None:
    rig = Rig(session_credit=2)
    target = rig.target()
    target.open(1)
    rig.settle()
    rig.clock.advance(6)
    target.open(2)
    rig.settle()
    rig.clock.advance(6)
    target.open(3)
    rig.settle()
    assert not nacks(target)
    assert {s.id for s in rig.engine._table.sessions()} == {2, 3}


def test_target_below_its_share_displaces_one_above_it() -> None:
    rig = Rig(session_credit=4)
    first, second = rig.target("a"), None
    for session in range(4):
        first.open(session, priority=session)
    rig.settle()
    first.take()
    second = rig.target("b")
    second.open(9)
    rig.settle()
    assert nacks(first) == [(0, 1, NackCode.BUSY)]
    assert [m.session for m in second.of(Opened)] == [9]


def test_epochs() -> None:
    rig = Rig()
    target = rig.target()
    target.open(epoch=2)
    target.commit(3, (9,), epoch=1)  # older: silent
    rig.settle()
    assert rig.count("ssd:draft_dropped_total", reason="old_epoch") == 1
    target.take()
    target.commit(3, (9,), epoch=3)  # newer without Open
    target.commit(4, (9,), epoch=3)  # and said once only
    rig.settle()
    assert nacks(target) == [(1, 3, NackCode.UNKNOWN)]
    target.open(epoch=1)  # an Open of the past
    rig.settle()
    assert not target.of(Opened)
    target.open(epoch=3, tokens=(8, 8, 8, 8))
    rig.settle()
    assert [(m.epoch, m.have_len) for m in target.of(Opened)] == [(3, 4)]
    assert rig.engine.n_sessions == 1


def test_gap_is_answered_with_what_the_draft_has_and_caught_up() -> None:
    rig = Rig()
    target = rig.target()
    target.open()
    target.commit(5, (9,))
    rig.settle()
    (nack,) = target.of(Nack)
    assert (nack.code, nack.have_len) == (NackCode.GAP, 3)
    target.commit(3, (7, 8, 9))
    rig.settle()
    assert target.blocks()[-1].base_len == 6


def test_conflict_ends_the_epoch_and_later_rows_of_it_are_silent() -> None:
    rig = Rig()
    target = rig.target()
    target.open()
    target.commit(2, (6, 9))
    target.commit(4, (9,))
    rig.settle()
    assert nacks(target) == [(1, 1, NackCode.CONFLICT)]
    assert rig.engine.n_sessions == 0
    assert rig.leaks() == (0, 0)
    target.open(epoch=2)
    rig.settle()
    assert target.of(Opened)


def test_bad_token_in_a_commit_ends_the_session() -> None:
    rig = Rig()
    target = rig.target()
    target.open()
    target.commit(3, (VOCABULARY - 1,))
    target.commit(4, (9,), proposal=(1, 2**31))
    rig.settle()
    assert nacks(target) in ([], [(1, 1, NackCode.BAD_TOKEN)])  # the codec may drop the frame before
    inbox = Inbox()
    stream, _ = pair(inbox, rig.inbox)
    stream.send(Hello("plain", 1, HASH, VOCABULARY))
    stream.send(target.open(session=8))
    rig.settle()
    stream.send(CommitBatch((target.row(3, (VOCABULARY,), session=8),)))
    rig.settle()
    assert [m.code for _, m in inbox.drain() if isinstance(m, Nack)] == [NackCode.BAD_TOKEN]


def test_commit_beyond_the_context_ends_the_session() -> None:
    rig = Rig()
    target = rig.target()
    target.open(tokens=(1,) * 118, max_len=1000)
    target.commit(118, (2,))
    rig.settle()
    assert not nacks(target)
    target.commit(119, (2,))
    rig.settle()
    assert nacks(target) == [(1, 1, NackCode.TOO_LONG)]
    assert rig.leaks() == (0, 0)


def test_commit_without_any_session_is_unknown_and_a_late_one_after_finish_is_not() -> None:
    rig = Rig()
    target = rig.target()
    target.commit(3, (9,), session=77)
    target.open()
    target.commit(3, (9,), finish=True)
    target.commit(4, (9,))
    rig.settle()
    assert nacks(target) == [(77, 1, NackCode.UNKNOWN)]
    assert rig.engine.n_sessions == 0


def test_open_that_comes_after_its_close_leaves_nothing_behind() -> None:
    rig = Rig()
    target = rig.target()
    message = target.open()
    rig.settle()
    target.close(1)
    target.stream.send(message)  # duplicate
    target.close(5)
    target.open(session=5)  # reordered
    rig.settle()
    assert rig.engine.n_sessions == 0
    assert rig.leaks() == (0, 0)


def test_end_of_a_stream_frees_its_sessions_only() -> None:
    rig = Rig()
    first, second = rig.target("a"), rig.target("b")
    first.open(1)
    first.open(2)
    second.open(1)
    rig.engine.step()
    first.stream.close("gone")
    rig.settle()
    assert rig.engine.n_sessions == 1
    second.stream.close("gone")
    rig.settle()
    assert rig.engine.n_sessions == 0
    assert rig.leaks() == (0, 0)


def test_new_incarnation_ends_the_sessions_of_the_old_one() -> None:
    rig = Rig()
    first = rig.target("a")
    other = rig.target("b")
    first.open(1)
    other.open(1)
    rig.settle()
    again = rig.target("a", hello=False)
    again.stream.send(Hello("a", 2, HASH, VOCABULARY))
    rig.settle()
    assert [s.peer.target_id for s in rig.engine._table.sessions()] == ["b"]


def test_draining_refuses_and_says_so() -> None:
    rig = Rig()
    target = rig.target()
    target.open(1)
    rig.settle()
    target.take()
    rig.engine.drain()
    rig.engine.step()
    assert [m.draining for m in target.of(Load)] == [True]
    target.open(2)
    target.commit(3, (9,))
    rig.settle()
    messages = target.take()
    assert [(m.session, m.code) for m in messages if isinstance(m, Nack)] == [(2, NackCode.DRAINING)]
    assert any(isinstance(m, BlockBatch) for m in messages)


def test_wait_on_a_full_text_and_unknown_close_do_nothing() -> None:
    rig = Rig()
    target = rig.target()
    target.open(max_len=4)
    target.commit(3, (9,), next=Next.WAIT)
    target.stream.send(Close((123,)))
    rig.settle()
    assert not [b for b in target.blocks() if b.base_len == 4]
