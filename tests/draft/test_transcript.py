"""Commit rules of protocol.md (3 to 5), one case a line."""

from __future__ import annotations

import math

import pytest

from ssd_cluster.draft.transcript import Outcome, Round, Transcript, common_prefix
from ssd_cluster.link.messages import CommitRow, NackCode, Next

NOW = 50.0


def transcript(tokens: tuple[int, ...] = (1, 2, 3), proposal: tuple[int, ...] = (), counter: int = 4) -> Transcript:
    first = Round(Next.TOKENS if proposal else Next.NONE, proposal, 3, 6, NOW, math.inf)
    return Transcript(list(tokens), first, counter)


def row(from_len: int, tokens: tuple[int, ...] = (), counter: int = 5, **changes: object) -> CommitRow:
    values: dict[str, object] = {"next": Next.NONE, "k": 3, "rows": 6}
    return CommitRow(session=1, epoch=1, from_len=from_len, tokens=tokens, counter=counter, **(values | changes))


def apply(text: Transcript, commit: CommitRow) -> object:
    return text.commit(commit, NOW, k_max=8, vocabulary=100)


@pytest.mark.parametrize(
    ("commit", "tokens", "renewed", "nack", "dropped"),
    [
        (row(3, (9,)), [1, 2, 3, 9], True, None, None),
        (row(3, (9, 8)), [1, 2, 3, 9, 8], True, None, None),
        (row(1, (2, 3, 9)), [1, 2, 3, 9], True, None, None),
        (row(0, (1, 2, 3, 9)), [1, 2, 3, 9], True, None, None),
        (row(1, (2, 3)), [1, 2, 3], True, None, None),
        (row(3), [1, 2, 3], True, None, None),
        (row(3, counter=4), [1, 2, 3], False, None, "replay"),
        (row(1, (2,)), [1, 2, 3], False, None, "replay"),
        (row(1), [1, 2, 3], False, None, "replay"),
        (row(4, (9,)), [1, 2, 3], False, NackCode.GAP, None),
        (row(-1, (9,)), [1, 2, 3], False, NackCode.GAP, None),
        (row(2, (7,)), [1, 2, 3], False, NackCode.CONFLICT, None),
        (row(1, (2, 7, 9)), [1, 2, 3], False, NackCode.CONFLICT, None),
        (row(3, (100,)), [1, 2, 3], False, NackCode.BAD_TOKEN, None),
        (row(3, (-1,)), [1, 2, 3], False, NackCode.BAD_TOKEN, None),
        (row(3, (9,), next=Next.TOKENS, proposal=(100,)), [1, 2, 3], False, NackCode.BAD_TOKEN, None),
    ],
)
def test_commit(
    commit: CommitRow, tokens: list[int], renewed: bool, nack: NackCode | None, dropped: str | None
) -> None:
    text = transcript()
    applied = apply(text, commit)
    assert text.tokens == tokens
    assert (applied.renewed, applied.nack, applied.dropped, applied.finished) == (renewed, nack, dropped, False)


def test_a_tail_counts_as_new_whatever_its_counter() -> None:
    text = transcript(counter=9)
    assert apply(text, row(3, (9,), counter=2)).renewed
    assert text.counter == 2


def test_newest_next_of_a_length_wins() -> None:
    text = transcript()
    apply(text, row(3, (9,), counter=5, next=Next.WAIT))
    apply(text, row(4, counter=7, next=Next.TOKENS, proposal=(5, 6)))
    assert apply(text, row(4, counter=6, next=Next.NONE)).dropped == "replay"
    assert text.round.proposal == (5, 6)
    assert text.round.next is Next.TOKENS


def test_finish_ends_even_when_the_row_is_old() -> None:
    assert apply(transcript(), row(3, (9,), finish=True)).finished
    assert apply(transcript(), row(2, counter=1, finish=True)).finished


def test_ceilings_and_times_are_taken_from_the_row() -> None:
    text = transcript()
    apply(text, row(3, (9,), k=99, rows=11, due_us=20_000, deadline_us=30_000))
    assert (text.round.k, text.round.rows) == (8, 11)
    assert text.round.due_s == pytest.approx(NOW + 0.02)
    assert text.round.deadline_s == pytest.approx(NOW + 0.03)
    apply(text, row(4, (9,)))
    assert text.round.due_s == NOW
    assert text.round.deadline_s == math.inf


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ((9,), (0, 9)),
        ((5, 9), (1, 9)),
        ((5, 6, 9), (2, 9)),
        ((5, 6, 7, 9), None),
        ((4, 9), None),
    ],
)
def test_outcome_is_read_off_the_proposal_in_flight(tail: tuple[int, ...], expected: tuple[int, int] | None) -> None:
    applied = apply(transcript(proposal=(5, 6)), row(3, tail))
    assert applied.outcome == (Outcome(3, (5, 6), *expected) if expected else None)


def test_overlap_does_not_hide_the_outcome() -> None:
    assert apply(transcript(proposal=(5, 6)), row(1, (2, 3, 5, 9))).outcome == Outcome(3, (5, 6), 1, 9)


def test_common_prefix() -> None:
    assert [common_prefix(a, [1, 2, 3]) for a in ([], [1], [1, 2, 3, 4], [2], [1, 2, 4])] == [0, 1, 3, 0, 2]
