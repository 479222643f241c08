"""What one target may ask of a draft: openings, sessions, tokens, rows; another target does not feel it."""

from __future__ import annotations

from typing import Any

import pytest
from support.toy_draft import Rig, ScriptedTarget

from ssd_cluster.config_link import TargetLimits
from ssd_cluster.draft.quotas import Quotas
from ssd_cluster.link.messages import Load, Nack, NackCode, Opened, StreamClosed, Welcome


def limited(**limits: Any) -> Rig:
    return Rig(limits=TargetLimits(**limits))


def nacks(target: ScriptedTarget) -> list[tuple[int, NackCode]]:
    return [(m.session, m.code) for m in target.take() if isinstance(m, Nack)]


def count(rig: Rig, limit: str) -> float:
    return rig.count("ssd:draft_limited_total", limit=limit)


def test_openings_beyond_the_rate_are_busy_until_the_bucket_fills() -> None:
    rig = limited(opens_per_s=0.25, opens_burst=3)
    target, other = rig.target("eager"), rig.target("calm")
    for session in range(5):
        target.open(session)
        target.close(session)
    rig.settle()
    refused = [m for m in target.take() if isinstance(m, Nack)]
    assert [(m.session, m.code) for m in refused] == [(3, NackCode.BUSY), (4, NackCode.BUSY)]
    assert all(3000 < m.retry_after_ms <= 4000 for m in refused)
    assert count(rig, "opens") == 2
    other.open(1)
    rig.settle()
    assert nacks(other) == []
    rig.clock.advance(refused[0].retry_after_ms / 1000)
    target.open(7)
    target.open(8)
    rig.settle()
    assert nacks(target) == [(8, NackCode.BUSY)]


def test_a_new_stream_brings_no_new_openings() -> None:
    rig = limited(opens_per_s=0.1, opens_burst=1)
    first = rig.target("same")
    first.open(1)
    rig.settle()
    first.stream.close()
    again = rig.target("same")
    again.open(2)
    rig.settle()
    assert nacks(again) == [(2, NackCode.BUSY)]


def test_malformed_openings_count() -> None:
    rig = limited(opens_per_s=0.1, opens_burst=2)
    target = rig.target()
    for session in range(3):
        target.open(session, temperature=1.0, tokens=tuple(range(3)) * 50)  # beyond the context
    rig.settle()
    assert nacks(target) == [(0, NackCode.TOO_LONG), (1, NackCode.TOO_LONG), (2, NackCode.BUSY)]


def test_the_quota_of_a_forgotten_target_starts_anew_and_memory_stays_bounded() -> None:
    quotas = Quotas(TargetLimits(opens_per_s=0.001, opens_burst=1))
    assert quotas.opening("first", 0.0) is None
    assert quotas.opening("first", 0.0) is not None
    for n in range(5000):
        assert quotas.opening(f"t{n}", 0.0) is None
    assert len(quotas._rates) == 4096
    assert quotas.opening("first", 0.0) is None


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    quotas = Quotas(TargetLimits(opens_per_s=1.0, opens_burst=1))
    assert quotas.opening("t", 100.0) is None
    over = quotas.opening("t", 50.0)
    assert over is not None
    assert over.retry_s == pytest.approx(1.0)


def test_sessions_of_one_target() -> None:
    rig = limited(sessions=2)
    target, other = rig.target("a"), rig.target("b")
    for session in range(3):
        target.open(session)
        other.open(session)
    rig.settle()
    messages = target.take()
    assert [m.session_credit for m in messages if isinstance(m, Welcome)] == [2]
    assert {m.session_credit for m in messages if isinstance(m, Load)} == {2}
    assert [m.session for m in messages if isinstance(m, Nack) and m.code is NackCode.BUSY] == [2]
    assert nacks(other) == [(2, NackCode.BUSY)]
    assert count(rig, "sessions") == 2


def test_tokens_of_all_sessions_at_open() -> None:
    rig = limited(tokens=20)
    target = rig.target()
    target.open(1, tokens=(3,) * 12)
    target.open(2, tokens=(3,) * 9)
    target.open(3, tokens=(3,) * 21)
    target.open(4, tokens=(3,) * 8)
    rig.settle()
    assert nacks(target) == [(2, NackCode.BUSY), (3, NackCode.TOO_LONG)]
    assert count(rig, "tokens") == 2
    target.close(1)
    target.open(5, tokens=(3,) * 12)
    rig.settle()
    assert nacks(target) == []
    assert rig.engine.n_sessions == 2


def test_tokens_that_commits_bring() -> None:
    rig = limited(tokens=12)
    target, other = rig.target("a"), rig.target("b")
    target.open(1, tokens=(3, 4, 5))
    target.open(2, tokens=(3, 4, 5))
    other.open(1, tokens=(3, 4, 5))
    rig.settle()
    target.take()
    target.commit(3, (6, 7, 8), session=1)  # nine
    target.commit(3, (6, 7, 8), session=2)  # twelve
    rig.settle()
    assert nacks(target) == []
    target.commit(6, (9,), session=2)
    rig.settle()
    assert nacks(target) == [(2, NackCode.BUSY)]
    target.commit(6, (9,) * 7, session=1)
    other.commit(3, (6, 7, 8))
    rig.settle()
    assert nacks(target) == [(1, NackCode.TOO_LONG)]
    assert nacks(other) == []
    assert rig.engine.n_sessions == 1
    assert rig.leaks()[1] == 0


def test_rows_beyond_the_limit_are_cut_and_counted() -> None:
    rig = limited(rows=4)
    target = rig.target()
    target.open(rows=40)
    rig.settle()
    messages = target.take()
    assert [m.row_credit for m in messages if isinstance(m, Welcome)] == [4]
    assert {m.row_credit for m in messages if isinstance(m, Load)} == {4}
    target.commit(3, (6,), rows=40)
    rig.settle()
    assert 1 <= max(len(block.branches) for block in target.blocks()) <= 4
    assert count(rig, "rows") >= 1


def test_within_its_limits_a_target_is_never_counted() -> None:
    rig = limited(sessions=2, rows=16, tokens=40, opens_per_s=1, opens_burst=2)
    target = rig.target()
    target.open(1)
    target.open(2)
    rig.settle()
    target.commit(3, (6,), session=1)
    rig.settle()
    messages = target.take()
    assert len([m for m in messages if isinstance(m, Opened)]) == 2
    assert [m for m in messages if isinstance(m, Nack | StreamClosed)] == []
    assert [count(rig, limit) for limit in ("opens", "sessions", "tokens", "rows")] == [0, 0, 0, 0]


def test_invalid_frames_are_counted_also_at_the_end_of_a_stream() -> None:
    rig = Rig()
    target = rig.target()
    rig.settle()
    target.draft_end.frames_dropped += 3
    rig.inbox.put(target.draft_end, StreamClosed("broken"))
    rig.settle()
    assert rig.count("ssd:draft_invalid_frames_total") == 3
