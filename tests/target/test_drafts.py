"""Draft sessions and links of a target: refusals, loss, breaker, credits, draining, and the order of what is sent."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest
from support.scripted_draft import Dead, HalfRight, Script, ScriptedDraft, ScriptedSession, Stale, Truth, load
from support.target_rig import Client, Rig, assert_clean, connect, drain, request, run, submit

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    Branch,
    Close,
    CommitBatch,
    CommitRow,
    Hello,
    Message,
    Nack,
    NackCode,
    Next,
    Open,
    Pull,
)
from ssd_cluster.target.breaker import BreakerState
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.replica import ReplicaState
from ssd_cluster.target.request import Event, GenerationRequest
from ssd_cluster.types import Mode, fingerprint

from .conftest import Reference

PROMPT = range(5, 40)
Plain = Callable[[list[GenerationRequest]], Reference]


class Clock:
    """A clock that moves a little with every look at it, and further on demand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


def requests(n: int = 1, **fields: object) -> list[GenerationRequest]:
    merged = {"temperature": 0.8, "max_tokens": 30, "ignore_eos": True} | fields
    return [request(f"r{i}", range(5 + i, 40 + i), seed=i, **merged) for i in range(n)]  # type: ignore[arg-type]


def rows(draft: ScriptedDraft) -> list[CommitRow]:
    return [row for message in draft.received if isinstance(message, CommitBatch) for row in message.rows]


def sent(draft: ScriptedDraft, kind: type[Message]) -> list[Message]:
    return [message for message in draft.received if isinstance(message, kind)]


def value(engine: TargetEngine, name: str, **labels: str) -> float:
    return engine.metrics.registry.get_sample_value(name, labels) or 0.0


# --- what a healthy session sends


def test_a_session_opens_with_the_prompt_and_commits_every_round(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Script(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 4, "rows": 7})
    connect(engine)
    client = run(engine, requests())[0]
    opened = sent(draft, Open)[0]
    assert isinstance(opened, Open)
    assert opened.tokens == tuple(PROMPT)
    assert (opened.temperature, opened.seed, opened.k, opened.rows) == (0.8, 0, 4, 7)
    assert opened.max_len == len(PROMPT) + 30
    assert opened.stop_ids == ()
    committed = rows(draft)
    assert [token for row in committed for token in row.tokens] == client.choices[0].token_ids
    assert [row.from_len for row in committed[1:]] == [row.base_len for row in committed[:-1]]
    assert committed[-1].finish
    assert [row.finish for row in committed[:-1]] == [False] * (len(committed) - 1)
    hits = [row for row in committed if row.next is Next.TOKENS]
    assert hits
    assert all(row.origin is not None for row in hits)
    assert [delta.token_ids for delta in client.choices[0].deltas] == [row.tokens for row in committed]
    engine.stop()


def test_stop_ids_of_a_session_are_the_ends_of_the_request(rig: Rig) -> None:
    draft = ScriptedDraft(Script(Truth()))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    run(engine, [request("a", PROMPT, stop_token_ids=(9, 5000)), request("b", PROMPT, ignore_eos=True)])
    assert [message.stop_ids for message in sent(draft, Open)] == [(2, 9), ()]  # type: ignore[union-attr]
    engine.stop()


def test_the_commit_leaves_before_the_client_hears_of_the_tokens(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(HalfRight(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    heard = 0

    def sink(event: Event) -> None:
        nonlocal heard
        heard += len(getattr(event, "token_ids", ()))
        assert sum(len(row.tokens) for row in rows(draft)) >= heard

    engine.submit(requests()[0], sink)
    drain(engine)
    assert heard == 30
    engine.stop()


def test_the_last_rounds_ask_for_no_blocks(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Script(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 3})
    connect(engine)
    run(engine, requests())
    end = len(PROMPT) + 30
    assert all((row.rows > 0) == (end - row.base_len > 2) for row in rows(draft))
    assert all(len(row.proposal) <= max(0, end - row.base_len - 1) for row in rows(draft))
    engine.stop()


def test_blocks_are_due_a_round_trip_before_the_outcome(rig: Rig) -> None:
    clock = Clock()
    draft = ScriptedDraft(Script(Truth()))
    engine = rig.engine(Mode.SSD, [draft.connect], clock=clock)
    connect(engine)
    submit(engine, requests())
    engine.step()
    (replica,) = engine.drafts.links.replicas
    (session,) = replica.sessions.values()
    assert 0 < replica.round_trip_s < 1e-3, "measured by the Open"
    replica.trips.extend([0.004, 0.003])
    replica.trips.popleft()
    assert replica.round_trip_s == 0.003
    assert [engine.drafts.ceilings(session, 10, due).due_us for due in (9000, 2000)] == [6000, 0]
    engine.drafts.links.lost(replica, "cut", clock())
    clock.now += 10
    connect(engine)
    assert replica.round_trip_s == 0, "another link, another latency"
    engine.stop()


def test_sd_waits_for_a_chain_every_round_and_asks_for_no_blocks(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Script(known.truth))
    engine = rig.engine(Mode.SD, [draft.connect], speculation={"k": 4})
    connect(engine)
    run(engine, requests())
    assert {row.rows for row in rows(draft)} == {0}
    waits = [row for row in rows(draft) if row.next is Next.WAIT]
    chains = [row for row in rows(draft) if row.next is Next.TOKENS]
    assert len(waits) == len(chains) == 6
    for wait, chain in zip(waits, chains, strict=True):
        assert wait.base_len == chain.from_len == chain.base_len
        assert chain.counter > wait.counter
        assert len(chain.proposal) == wait.k == min(4, len(PROMPT) + 30 - wait.base_len - 1)
    engine.stop()


def test_fallback_tokens_are_sent_with_the_commit(rig: Rig) -> None:
    draft = ScriptedDraft(Script(Truth()))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 3, "miss_policy": "never_wait", "ngram_min": 1})
    connect(engine)
    client = run(engine, [request("r", [*range(3, 320)], temperature=0, max_tokens=12, ignore_eos=True)])[0]
    assert client.finished is not None
    delta = [row for row in rows(draft) if row.next is Next.TOKENS]
    assert len(delta) == client.finished.speculation.num_spec_steps > 3
    assert all(row.proposal_kind == "delta" and row.origin is None for row in delta)
    assert value(engine, "ssd:fallbacks_total", source="ngram") == len(delta)
    engine.stop()


# --- waiting


def test_a_miss_that_waits_gets_its_chain(rig: Rig, reference: Plain) -> None:
    class ChainsOnly(Script):
        def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Branch]:
            return [Branch(0, 299, (1, 1), -1.0)]

    known = reference(requests())
    draft = ScriptedDraft(ChainsOnly(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 4, "miss_policy": "always_wait"})
    connect(engine)
    client = run(engine, requests())[0]
    assert client.finished is not None
    stats = client.finished.speculation
    assert stats.cache_hits == 0
    assert stats.cache_misses == stats.fallbacks > 3
    assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 0
    assert value(engine, "ssd:fallbacks_total", source="jit") == stats.fallbacks
    engine.stop()


def test_only_rows_that_miss_are_affected_when_nobody_waits(rig: Rig, reference: Plain) -> None:
    class OneSession(Script):
        def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Branch]:
            return super().branches(session, proposal, k, rows) if session.opened.seed == 0 else []

    known = reference(requests(3))
    draft = ScriptedDraft(OneSession(known.truth))
    settings = {"k": 4, "miss_policy": "never_wait", "fallback": "none"}
    engine = rig.engine(Mode.SSD, [draft.connect], speculation=settings)
    connect(engine)
    lucky, *others = run(engine, requests(3))
    assert [len(delta.token_ids) for delta in lucky.choices[0].deltas] == [1, 5, 5, 5, 5, 5, 4]
    for client in others:
        assert all(len(delta.token_ids) == 1 for delta in client.choices[0].deltas)
    assert not sent(draft, Pull)
    assert {row.next for row in rows(draft)} == {Next.TOKENS, Next.NONE}
    engine.stop()


def test_a_silent_draft_is_waited_for_twice_then_suspected_then_left(rig: Rig, reference: Plain) -> None:
    known = reference(requests(1, max_tokens=60))
    draft = ScriptedDraft(Dead(known.truth))
    breaker = {"window": 8, "retry_s": 50.0}
    engine = rig.engine(
        Mode.SSD, [draft.connect], speculation={"miss_policy": "always_wait", "wait_ms": 200.0}, breaker=breaker
    )
    connect(engine)
    client = run(engine, requests(1, max_tokens=60))[0]
    assert client.tokens == known.clients[0].tokens
    waits = [row for row in rows(draft) if row.next is Next.WAIT]
    assert len(waits) == 2
    assert len(sent(draft, Pull)) == 2, "an overdue chain is asked for once more"
    assert len(sent(draft, Open)) == 1
    assert len(sent(draft, Close)) == 1, "the breaker detaches the session"
    assert value(engine, "ssd:draft_failures_total", reason="late") == 1
    assert len(rows(draft)) < 12
    assert_clean(engine, draft)
    engine.stop()


def test_a_replica_is_probed_again_after_the_pause(rig: Rig, reference: Plain) -> None:
    clock = Clock()
    long = requests(1, max_tokens=120)
    known = reference(long)
    draft = ScriptedDraft(Dead(known.truth))
    settings = {"miss_policy": "never_wait", "k": 2}
    breaker = {"window": 4, "retry_s": 1.0}
    engine = rig.engine(Mode.SSD, [draft.connect], speculation=settings, breaker=breaker, clock=clock)
    connect(engine)
    client = submit(engine, long)[0]
    while not sent(draft, Close):
        engine.step()
    for _ in range(5):
        engine.step()
    assert len(sent(draft, Open)) == 1, "open: left alone"
    draft.script = Script(known.truth)
    clock.now += 1.6
    drain(engine)
    opens = sent(draft, Open)
    assert len(opens) == 2
    assert isinstance(opens[1], Open)
    assert opens[1].epoch == 2
    assert len(opens[1].tokens) > len(PROMPT)
    assert client.tokens == known.clients[0].tokens
    assert client.finished is not None
    assert client.finished.speculation.cache_hits > 10
    assert_clean(engine, draft)
    engine.stop()


# --- refusals


@pytest.mark.parametrize("code", [NackCode.UNKNOWN, NackCode.CONFLICT])
def test_a_lost_session_is_reopened_three_times_at_most(rig: Rig, reference: Plain, code: NackCode) -> None:
    clock = Clock()
    known = reference(requests())
    for refusals, opens in ((1, 2), (3, 4), (9, 4)):
        draft = ScriptedDraft(Script(known.truth), answers=[Nack(0, 0, code)] * refusals)
        engine = rig.engine(Mode.SSD, [draft.connect], clock=clock)
        connect(engine)
        client = run(engine, requests())[0]
        assert client.tokens == known.clients[0].tokens
        opened = sent(draft, Open)
        assert [message.epoch for message in opened] == list(range(1, opens + 1))  # type: ignore[union-attr]
        assert client.finished is not None
        assert (client.finished.speculation.cache_hits > 0) == (refusals <= 3)
        assert value(engine, "ssd:draft_failures_total", reason=code.value) == min(refusals, 4)
        assert_clean(engine, draft)
        engine.stop()


@pytest.mark.parametrize("code", [NackCode.TOO_LONG, NackCode.MISMATCH, NackCode.BAD_TOKEN])
def test_a_refusal_lasts_for_the_request_and_no_longer(
    rig: Rig, reference: Plain, code: NackCode, caplog: pytest.LogCaptureFixture
) -> None:
    known = reference(requests(2))
    draft = ScriptedDraft(Script(known.truth), answers=[Nack(0, 0, code)] * 2)
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"fallback": "none"})
    connect(engine)
    first = run(engine, requests(2))
    assert [client.tokens for client in first] == [client.tokens for client in known.clients]
    assert len(sent(draft, Open)) == 2
    assert not rows(draft)
    assert len([record for record in caplog.records if "draft_session_refused" in record.message]) == 1
    again = run(engine, requests(2))
    assert [client.tokens for client in again] == [client.tokens for client in known.clients]
    assert rows(draft)
    for client in first:
        assert client.finished is not None
        assert client.finished.speculation.num_draft_tokens == 0
    engine.stop()


def test_busy_is_asked_again_after_its_pause(rig: Rig, reference: Plain) -> None:
    clock = Clock()
    long = requests(1, max_tokens=60)
    known = reference(long)
    draft = ScriptedDraft(Script(known.truth), answers=[Nack(0, 0, NackCode.BUSY, retry_after_ms=4000)])
    engine = rig.engine(Mode.SSD, [draft.connect], clock=clock)
    connect(engine)
    client = submit(engine, long)[0]
    for _ in range(4):
        engine.step()
    clock.now += 3.5
    for _ in range(3):
        engine.step()
    assert len(sent(draft, Open)) == 1
    clock.now += 1.0
    drain(engine)
    assert len(sent(draft, Open)) == 2
    assert client.tokens == known.clients[0].tokens
    assert_clean(engine, draft)
    engine.stop()


def test_a_gap_is_filled_by_one_commit(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Script(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 2})
    connect(engine)
    client = submit(engine, requests())[0]
    for _ in range(4):
        engine.step()
    (session,) = draft.sessions.values()
    del session.tokens[-4:]
    drain(engine)
    filled = [row for row in rows(draft) if len(row.tokens) > 3]
    assert len(filled) == 1
    assert client.tokens == known.clients[0].tokens
    assert_clean(engine, draft)
    engine.stop()


def test_an_evicted_session_keeps_committing_and_comes_back(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Script(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 2, "miss_policy": "always_wait"})
    connect(engine)
    client = submit(engine, requests())[0]
    for _ in range(3):
        engine.step()
    (session,) = draft.sessions.values()
    draft.push(Nack(session.opened.session, session.opened.epoch, NackCode.EVICTED, len(session.tokens)))
    engine.step()
    before = len(rows(draft))
    drain(engine)
    assert len(sent(draft, Open)) == 1
    assert len(rows(draft)) > before
    assert client.tokens == known.clients[0].tokens
    assert_clean(engine, draft)
    engine.stop()


# --- replicas that come and go


@pytest.mark.parametrize("mode", [Mode.SD, Mode.SSD])
def test_killing_the_draft_changes_no_text_and_it_is_used_again(
    rig: Rig, reference: Plain, mode: Mode, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    long = requests(3, max_tokens=90)
    known = reference(long)
    draft = ScriptedDraft(HalfRight(known.truth))
    engine = rig.engine(mode, [draft.connect], clock=clock)
    connect(engine)
    clients = submit(engine, long)
    for _ in range(6):
        engine.step()
    draft.reachable = False
    draft.kill()
    engine.step()
    assert engine.snapshot().sessions["attached"] == 0
    assert value(engine, "ssd:draft_failures_total", reason="stream") == 1
    assert engine.drafts.links.replicas[0].breaker.state is BreakerState.OPEN
    for _ in range(5):
        engine.step()
    draft.reachable = True
    clock.now += 2.0
    connect(engine)
    clock.now += 2.0
    drain(engine)
    assert [client.tokens for client in clients] == [client.tokens for client in known.clients]
    assert all(client.finished is not None and client.finished.error is None for client in clients)
    assert len([record for record in caplog.records if "draft_lost" in record.message]) == 1
    assert len([message for message in draft.received if isinstance(message, Hello)]) == 2
    late_opens = [message for message in sent(draft, Open) if message.epoch > 1]  # type: ignore[union-attr]
    assert late_opens, "sessions are opened again"
    assert_clean(engine, draft)
    engine.stop()


def test_a_draft_that_was_away_for_long_is_tried_again_within_five_seconds(rig: Rig, reference: Plain) -> None:
    clock = Clock()
    draft = ScriptedDraft(HalfRight(reference(requests()).truth))
    engine = rig.engine(Mode.SSD, [draft.connect], clock=clock)
    connect(engine)
    (replica,) = engine.drafts.links.replicas
    draft.reachable = False
    draft.kill()
    pauses = []
    for attempt in range(1, 12):
        deadline = time.monotonic() + 5.0
        while replica.failures < attempt:
            assert time.monotonic() < deadline, "the attempt has not failed"
            engine.step()
            time.sleep(0.0005)
        pauses.append(replica.deadline - clock.now)
        clock.now = replica.deadline
    assert pauses[0] < pauses[1] < 5.0
    assert max(pauses) <= 5.0
    draft.reachable = True
    connect(engine)
    draft.reachable = False
    draft.kill()
    engine.step()
    assert replica.deadline - clock.now <= 1.5, "after a connection pauses are short again"
    engine.stop()


def test_killing_the_draft_during_a_wait_ends_the_wait(rig: Rig, reference: Plain) -> None:
    known = reference(requests())

    class DiesWhenAsked(Script):
        def chain(self, session: ScriptedSession, k: int) -> list[Branch]:
            draft.kill()
            return []

    draft = ScriptedDraft(DiesWhenAsked(known.truth))
    engine = rig.engine(Mode.SD, [draft.connect], speculation={"wait_ms": 10_000.0})
    connect(engine)
    client = run(engine, requests())[0]
    assert client.tokens == known.clients[0].tokens
    engine.stop()


@pytest.mark.parametrize(
    "field", [{"tokenizer_hash": "other"}, {"vocabulary": 17}, {"protocol": 99}], ids=lambda field: next(iter(field))
)
def test_a_draft_that_does_not_fit_is_refused_with_the_difference(
    rig: Rig, reference: Plain, field: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Script(known.truth), welcome=field)
    engine = rig.engine(Mode.SSD, [draft.connect])
    while engine.snapshot().drafts != (ReplicaState.REFUSED.value,):
        engine.step()
    client = run(engine, requests())[0]
    assert client.tokens == known.clients[0].tokens
    assert not sent(draft, Open)
    assert draft.stream is not None
    assert draft.stream.closed
    assert value(engine, "ssd:draft_failures_total", reason="mismatch") == 1
    (record,) = [record for record in caplog.records if "draft_refused" in record.message]
    assert next(iter(field)).split("_")[0] in record.message
    assert str(next(iter(field.values()))) in record.message
    engine.stop()


def test_credits_limit_sessions_and_rows(rig: Rig, reference: Plain) -> None:
    known = reference(requests(4))
    draft = ScriptedDraft(Script(known.truth), welcome={"session_credit": 2, "row_credit": 10})
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"rows": 8})
    connect(engine)
    clients = submit(engine, requests(4, max_tokens=30))
    for _ in range(3):
        engine.step()
        assert len(draft.sessions) == 2
    assert {row.rows for row in rows(draft)} == {5}
    draft.push(load(row_credit=10, session_credit=1))
    engine.step()
    assert len(draft.sessions) == 1
    drain(engine)
    assert [client.tokens for client in clients] == [client.tokens for client in known.clients]
    assert_clean(engine, draft)
    engine.stop()


def test_fewer_credits_cost_the_lowest_priority_its_session(rig: Rig) -> None:
    draft = ScriptedDraft(Script(Truth()))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    for priority in (1, 0, 2):
        engine.submit(request(f"p{priority}", PROMPT, priority=priority), Client(request("x", PROMPT)))
    engine.step()
    draft.push(load(session_credit=2))
    engine.step()
    assert sorted(session.opened.priority for session in draft.sessions.values()) == [1, 2]
    drain(engine)
    engine.stop()


def test_sessions_of_a_draining_draft_move_and_the_text_stays(rig: Rig, reference: Plain) -> None:
    known = reference(requests(2, max_tokens=50))
    old, new = (ScriptedDraft(HalfRight(known.truth)) for _ in range(2))
    engine = rig.engine(Mode.SSD, [old.connect, new.connect])
    connect(engine)
    while not all(state == "ready" for state in engine.snapshot().drafts):
        engine.step()
    clients = submit(engine, requests(2, max_tokens=50))
    for _ in range(4):
        engine.step()
    draining, other = (old, new) if old.sessions else (new, old)
    moved = set(draining.sessions)
    draining.push(load(draining=True))
    engine.step()
    assert not draining.sessions
    assert moved <= set(other.sessions)
    drain(engine)
    assert [client.tokens for client in clients] == [client.tokens for client in known.clients]
    assert_clean(engine, old, new)
    engine.stop()


def test_sessions_spread_over_replicas(rig: Rig) -> None:
    drafts = [ScriptedDraft(Script(Truth())) for _ in range(2)]
    engine = rig.engine(Mode.SSD, [draft.connect for draft in drafts])
    while not all(state == "ready" for state in engine.snapshot().drafts):
        engine.step()
    submit(engine, requests(6))
    engine.step()
    assert [len(draft.sessions) for draft in drafts] == [3, 3]
    drain(engine)
    engine.stop()


# --- what does not fit is dropped and counted


def test_blocks_of_old_epochs_and_unknown_proposals(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Dead(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect], speculation={"miss_policy": "never_wait", "fallback": "none"})
    connect(engine)
    client = submit(engine, requests())[0]
    engine.step()
    (session,) = draft.sessions.values()
    said = known.clients[0].tokens[0]
    base, opened = len(session.tokens), session.opened

    def push(epoch: int, name: int, *branches: Branch) -> None:
        batch = BlockBatch((Block(opened.session, epoch, 1, base, name, branches),))
        assert draft.stream is not None
        draft.stream._inbox.put(draft.stream, batch)

    right = Branch(0, said[1], tuple(said[2:5]), -0.1)
    push(0, fingerprint(base, ()), right)
    engine.step()
    assert len(client.choices[0].deltas[-1].token_ids) == 1, "an older epoch is dropped silently"
    assert value(engine, "ssd:link_dropped_total", reason="unknown_session") == 0
    base, right = base + 1, Branch(0, said[2], tuple(said[3:6]), -0.1)
    push(opened.epoch, 12345, Branch(2, 7, (8,), -0.1), right)
    engine.step()
    engine.step()
    assert client.choices[0].deltas[-1].token_ids == tuple(said[3:7]), "k = 0 branches are usable all the same"
    push(opened.epoch + 1, 1, right)
    push(opened.epoch, 1, right)
    engine.step()
    assert value(engine, "ssd:link_dropped_total", reason="unknown_session") == 1
    assert value(engine, "ssd:link_dropped_total", reason="stale") == 1
    drain(engine)
    assert client.tokens == known.clients[0].tokens
    engine.stop()


def test_every_lookup_is_counted_once(rig: Rig, reference: Plain) -> None:
    known = reference(requests(3))
    for script in (Script, HalfRight, Stale):
        draft = ScriptedDraft(script(known.truth))
        engine = rig.engine(Mode.SSD, [draft.connect], speculation={"k": 3})
        connect(engine)
        clients = run(engine, requests(3))
        hits = value(engine, "ssd:cache_lookups_total", result="hit")
        others = sum(value(engine, "ssd:cache_lookups_total", result=kind) for kind in ("miss", "late", "stale"))
        stats = [client.finished.speculation for client in clients if client.finished is not None]
        assert hits == sum(one.cache_hits for one in stats)
        assert others == sum(one.cache_misses for one in stats)
        expected = sum(
            sum(1 for row, after in itertools.pairwise(mine) if row.rows and not after.finish)
            for mine in by_session(draft).values()
        )
        assert hits + others <= expected + len(clients)
        assert (script is Script) == (others == 0)
        engine.stop()


def by_session(draft: ScriptedDraft) -> dict[int, list[CommitRow]]:
    found: dict[int, list[CommitRow]] = {}
    for row in rows(draft):
        found.setdefault(row.session, []).append(row)
    return found


def test_random_faults_never_change_the_text(rig: Rig, reference: Plain) -> None:
    rng = random.Random(11)
    clock = Clock()
    long = requests(4, max_tokens=40)
    known = reference(long)
    draft = ScriptedDraft(HalfRight(known.truth, 5))
    engine = rig.engine(Mode.SSD, [draft.connect], clock=clock, speculation={"wait_ms": 0.5})
    connect(engine)
    codes = list(NackCode)
    for _ in range(6):
        clients = submit(engine, long)
        while engine.snapshot().requests:
            for session in list(draft.sessions.values()):
                if rng.random() < 0.1:
                    have = rng.randrange(len(session.tokens) + 3)
                    draft.push(Nack(session.opened.session, session.opened.epoch, rng.choice(codes), have, 5))
            if rng.random() < 0.03:
                draft.kill()
            clock.now += rng.random() * 0.2
            engine.step()
        assert [client.tokens for client in clients] == [client.tokens for client in known.clients]
    assert_clean(engine)
    engine.stop()


def test_no_proposal_is_longer_than_the_draft_allows(rig: Rig) -> None:
    loop = [request("r", [9, 10, 11] * 12, temperature=0, max_tokens=40, ignore_eos=True, seed=i) for i in range(1)]
    truth = Truth()
    draft = ScriptedDraft(Script(truth), welcome={"k_max": 2}, answers=[Nack(0, 0, NackCode.BUSY)])
    draft.script.k_max = 2
    clock = Clock()
    speculation = {"k": 8, "miss_policy": "never_wait", "ngram_min": 1}
    engine = rig.engine(Mode.SSD, [draft.connect], speculation=speculation, clock=clock)
    connect(engine)
    submit(engine, loop)
    longest = 0
    while engine.snapshot().requests:
        longest = max(longest, 0, *(len(choice.proposal.tokens) for choice in engine._scheduler.running))
        clock.now += 0.1
        engine.step()
    assert longest > 2, "without a session the fallback may be longer"
    assert len(sent(draft, Open)) == 2
    assert any(row.next is Next.TOKENS for row in rows(draft))
    assert_clean(engine, draft)
    engine.stop()


def test_a_message_that_fits_no_frame_costs_nothing_but_the_draft(rig: Rig, reference: Plain) -> None:
    known = reference(requests())
    draft = ScriptedDraft(Script(known.truth))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    stream = draft.stream
    assert stream is not None
    answer = stream.send

    def picky(message: Message) -> None:
        if isinstance(message, Open):
            raise InvalidFrame("too large")
        answer(message)

    stream.send = picky  # type: ignore[method-assign]
    client = run(engine, requests())[0]
    assert client.tokens == known.clients[0].tokens
    assert value(engine, "ssd:draft_failures_total", reason="frame") >= 1
    engine.stop()
