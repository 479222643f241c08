"""Faults happen as planned, repeatably, and in both directions."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from support.links import TO_DRAFT, TO_TARGET, ManualTimer, block, commit_row, hello, messages_of, welcome

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import ConfigError, LinkClosed
from ssd_cluster.link.codec import decode_to_draft, decode_to_target, encode
from ssd_cluster.link.faults import FaultPlan, ThreadTimer
from ssd_cluster.link.faulty import FaultyInbox, FaultyStream, faulty_connector
from ssd_cluster.link.garbage import corrupt_message
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.inprocess import InProcessStream, pair
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import BlockBatch, CommitBatch, Load, Message, Opened, StreamClosed, Welcome
from ssd_cluster.link.stream import Inbox, Stream

NO_FAULTS = FaultPlan()


class Rig:
    """A target whose stream misbehaves, and the draft's plain end."""

    def __init__(self, incoming: FaultPlan = NO_FAULTS, outgoing: FaultPlan = NO_FAULTS, codec: bool = False) -> None:
        self.timer = ManualTimer()
        self.up, self.down = Inbox(), Inbox()
        self.drafts: list[InProcessStream] = []

        def plain(inbox: Inbox) -> Stream:
            target, draft = pair(inbox, self.down, codec=codec)
            self.drafts.append(draft)
            return target

        self.connector = faulty_connector(plain, incoming=incoming, outgoing=outgoing, timer=self.timer)
        self.target = self.connector(self.up)
        self.draft = self.drafts[0]

    def receive(self, n: int) -> list[int]:
        """Send n numbered messages to the target; the numbers that arrive."""
        for number in range(n):
            self.draft.send(Opened(1, 0, number))
        return [m.have_len for m in messages_of(self.up) if isinstance(m, Opened)]

    def send(self, n: int) -> list[int]:
        """Send n numbered messages to the draft; the numbers that arrive."""
        for number in range(n):
            self.target.send(CommitBatch((commit_row(counter=number),)))
        return [m.rows[0].counter for m in messages_of(self.down) if isinstance(m, CommitBatch)]


def test_a_plan_without_faults_passes_everything_as_coming_from_the_wrapper() -> None:
    rig = Rig()
    assert rig.send(20) == rig.receive(20) == list(range(20))
    rig.draft.send(welcome())
    assert rig.up.drain() == [(rig.target, welcome())]
    assert rig.target.lost == 0
    assert rig.target.peer == rig.target.inner.peer


@pytest.mark.parametrize("direction", ["send", "receive"])
def test_drop_loses_some_and_keeps_the_order_of_the_rest(direction: str) -> None:
    plan = FaultPlan(seed=3, drop=0.3)
    rig = Rig(incoming=plan, outgoing=plan)
    got = getattr(rig, direction)(200)
    assert got == sorted(set(got))
    assert 100 < len(got) < 180
    assert rig.target.lost == 200 - len(got)


@pytest.mark.parametrize("direction", ["send", "receive"])
def test_duplicate_passes_some_twice(direction: str) -> None:
    plan = FaultPlan(seed=3, duplicate=0.3)
    got = getattr(Rig(incoming=plan, outgoing=plan), direction)(200)
    assert sorted(set(got)) == list(range(200))
    assert 220 < len(got) < 300


@pytest.mark.parametrize("direction", ["send", "receive"])
def test_reorder_holds_some_back_until_the_next_has_passed(direction: str) -> None:
    plan = FaultPlan(seed=5, reorder=0.3, hold_s=1.0)
    rig = Rig(incoming=plan, outgoing=plan)
    got = getattr(rig, direction)(200)
    assert got != sorted(got)
    rig.timer.advance(1.0)
    rest = getattr(rig, direction)(0)
    assert sorted(got + rest) == list(range(200))


def test_a_message_held_back_alone_arrives_after_the_hold() -> None:
    rig = Rig(incoming=FaultPlan(reorder=1.0, hold_s=0.5))
    assert rig.receive(1) == []
    rig.timer.advance(0.49)
    assert rig.receive(0) == []
    rig.timer.advance(0.02)
    assert rig.receive(0) == [0]


def test_delay_is_exact_and_keeps_the_order() -> None:
    rig = Rig(incoming=FaultPlan(delay_s=0.010))
    assert rig.receive(5) == []
    rig.timer.advance(0.0099)
    assert rig.receive(0) == []
    rig.timer.advance(0.0002)
    assert rig.receive(0) == [0, 1, 2, 3, 4]


def test_jitter_spreads_and_lets_messages_overtake() -> None:
    rig = Rig(incoming=FaultPlan(seed=1, delay_s=0.010, jitter_s=0.010))
    rig.receive(50)
    rig.timer.advance(0.015)
    early = rig.receive(0)
    rig.timer.advance(0.006)
    late = rig.receive(0)
    assert early
    assert late
    assert sorted(early + late) == list(range(50))
    assert early + late != list(range(50))


def test_skip_and_only_limit_a_plan() -> None:
    rig = Rig(incoming=FaultPlan(drop=1.0, skip=1, only=(BlockBatch,)))
    for message in (BlockBatch((block(),)), BlockBatch((block(1),)), Load(1, 1), welcome()):
        rig.draft.send(message)
    assert messages_of(rig.up) == [BlockBatch((block(),)), Load(1, 1), welcome()]


def test_the_same_seed_gives_the_same_faults_and_another_seed_others() -> None:
    def run(seed: int) -> list[object]:
        rig = Rig(incoming=FaultPlan(seed=seed, drop=0.2, duplicate=0.2, reorder=0.2, garbage=0.2, jitter_s=0.01))
        for number in range(100):
            rig.draft.send(BlockBatch((block(number),)))
            rig.timer.advance(0.003)
        rig.timer.advance(1)
        return messages_of(rig.up)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_streams_that_share_a_plan_draw_different_faults() -> None:
    rig = Rig(incoming=FaultPlan(seed=1, drop=0.5))
    first = rig.receive(64)
    rig.connector(rig.up)
    for number in range(64):
        rig.drafts[1].send(Opened(1, 0, number))
    second = [m.have_len for m in messages_of(rig.up) if isinstance(m, Opened)]
    assert first != second


def test_garbage_is_wrong_but_well_formed() -> None:
    rig = Rig(incoming=FaultPlan(seed=2, garbage=1.0, vocabulary=50), codec=True)
    sent = [BlockBatch((block(number),)) for number in range(60)]
    for message in sent:
        rig.draft.send(message)
    received = messages_of(rig.up)
    assert len(received) == 60
    assert sum(a != b for a, b in zip(received, sent, strict=True)) > 50
    changed = {
        name
        for a, b in zip(received, sent, strict=True)
        for name in ("session", "epoch", "base_len", "fingerprint", "branches")
        if getattr(a.blocks[0], name) != getattr(b.blocks[0], name)  # type: ignore[attr-defined]
    }
    assert changed == {"session", "epoch", "base_len", "fingerprint", "branches"}


@pytest.mark.parametrize("message", [*TO_DRAFT, *TO_TARGET], ids=lambda message: type(message).__name__)
def test_corrupted_messages_still_pass_the_codec(message: Message) -> None:
    decode = decode_to_draft if message in TO_DRAFT else decode_to_target
    for seed in range(40):
        wrong = corrupt_message(message, random.Random(seed), 100)
        assert type(wrong) is type(message)
        assert decode(encode(wrong), Limits()) == wrong


def test_byte_garbage_in_process_passes_only_what_decodes() -> None:
    rig = Rig(incoming=FaultPlan(seed=4, byte_garbage=1.0, vocabulary=1000))
    for number in range(100):
        rig.draft.send(BlockBatch((block(number),)))
    received = messages_of(rig.up)
    assert len(received) + rig.target.lost == 100
    assert rig.target.lost > 10
    for message in received:
        assert decode_to_target(encode(message), Limits(vocabulary=1000)) == message  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["hand", "outgoing", "incoming"])
def test_kill_tells_both_sides_once_and_nothing_follows(by: str) -> None:
    kill = FaultPlan(kill_after=2)
    rig = Rig(incoming=kill if by == "incoming" else NO_FAULTS, outgoing=kill if by == "outgoing" else NO_FAULTS)
    if by == "hand":
        rig.target.kill()
    elif by == "outgoing":
        rig.target.send(hello())
        rig.target.send(hello())
        with pytest.raises(LinkClosed):
            rig.target.send(hello())
    else:
        for number in range(2):
            rig.draft.send(Opened(1, 0, number))
        rig.draft.send(Opened(1, 0, 2))
    assert rig.target.closed
    assert rig.draft.closed
    ends = [(stream, m) for stream, m in rig.up.drain() if isinstance(m, StreamClosed)]
    assert [stream for stream, _ in ends] == [rig.target]
    assert len([m for m in messages_of(rig.down) if isinstance(m, StreamClosed)]) == 1
    with pytest.raises(LinkClosed):
        rig.target.send(hello())


def test_delayed_messages_do_not_arrive_after_the_end() -> None:
    rig = Rig(incoming=FaultPlan(delay_s=1.0), outgoing=FaultPlan(delay_s=1.0))
    rig.draft.send(welcome())
    rig.target.send(hello())
    rig.draft.close("gone")
    rig.timer.advance(2)
    assert rig.up.drain() == [(rig.target, StreamClosed("gone"))]
    assert rig.down.drain() == []
    assert rig.target.closed


def test_close_reaches_the_peer_and_not_the_closer() -> None:
    rig = Rig()
    rig.target.close("done")
    assert rig.up.drain() == []
    assert rig.down.drain() == [(rig.draft, StreamClosed("done"))]


def test_a_partition_loses_everything_silently_until_it_heals() -> None:
    rig = Rig()
    rig.target.partition()
    assert rig.send(5) == rig.receive(5) == []
    assert not rig.target.closed
    assert rig.target.lost == 10
    rig.target.heal()
    assert rig.send(5) == rig.receive(5) == list(range(5))


def test_a_draft_behind_a_faulty_inbox_sees_wrappers_of_every_stream() -> None:
    down, timer = Inbox(), ManualTimer()
    inlet = FaultyInbox(down, outgoing=FaultPlan(delay_s=0.5), timer=timer)
    ups = [Inbox(), Inbox()]
    targets = [pair(up, inlet)[0] for up in ups]
    for target in targets:
        target.send(hello())
    seen = [stream for stream, _ in down.drain()]
    assert len(set(seen)) == 2
    assert set(inlet.streams) == set(seen)
    for stream in seen:
        stream.send(welcome())
    assert not ups[0].drain()
    timer.advance(0.5)
    assert messages_of(ups[0]) == messages_of(ups[1]) == [welcome()]
    targets[0].close("bye")
    assert down.drain() == [(seen[0], StreamClosed("bye"))]
    assert inlet.streams == [seen[1]]


def test_the_inbox_wrapper_reads_like_the_inbox() -> None:
    inner = Inbox()
    inlet = FaultyInbox(inner)
    target, draft = pair(inlet, Inbox())
    draft.send(welcome())
    assert inlet.wait(0)
    received = inlet.receive(0)
    assert received is not None
    assert received[0] is inlet.wrap(target)
    inlet.wake()
    assert inner.wait(0)
    assert inlet.drain() == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: FaultPlan(drop=1.5),
        lambda: FaultPlan(delay_s=-1),
        lambda: FaultPlan(vocabulary=0),
        lambda: FaultPlan(kill_after=-1),
        lambda: FaultyStream(pair(Inbox(), Inbox())[0], FaultPlan(delay_s=1)),
        lambda: FaultyInbox(Inbox(), FaultPlan(reorder=0.5)).wrap(pair(Inbox(), Inbox())[0]),
    ],
)
def test_impossible_plans_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_the_real_timer_runs_in_order_of_time_and_forgets_at_close() -> None:
    timer, ran, done = ThreadTimer(), list[int](), threading.Event()
    timer.call_later(0.02, lambda: (ran.append(2), done.set()))  # type: ignore[func-returns-value]
    timer.call_later(0.001, lambda: ran.append(1))
    timer.call_later(1000, lambda: ran.append(3))
    assert done.wait(10)
    timer.close()
    assert ran == [1, 2]


def test_byte_garbage_over_grpc_reaches_the_peers_validation(
    loop: LinkLoop, listener: Listener, draft_inbox: Inbox, target_inbox: Inbox
) -> None:
    plan = FaultPlan(seed=8, byte_garbage=0.5, skip=1, only=(CommitBatch,))
    settings = LinkSettings()
    open_faulty = faulty_connector(lambda inbox: connect(listener.endpoint, inbox, settings, loop), outgoing=plan)
    target = open_faulty(target_inbox)
    target.send(hello())
    first = draft_inbox.receive(20)
    assert first is not None
    draft = first[0]
    draft.send(welcome())
    answer = target_inbox.receive(20)
    assert answer is not None
    assert answer[0] is target
    assert isinstance(answer[1], Welcome)
    assert target.bytes_sent == target.inner.bytes_sent > 0
    assert target.bytes_received > 0
    for counter in range(16):
        target.send(CommitBatch((commit_row(counter=counter),)))
    target.close("end")
    received: list[object] = []
    while not (received and isinstance(received[-1], StreamClosed)):
        item = draft_inbox.receive(20)
        assert item is not None
        received.append(item[1])
    assert draft.frames_dropped > 0
    assert draft.frames_dropped + len(received) - 1 == 16


def test_a_planned_kill_over_grpc_ends_both_sides(
    loop: LinkLoop, listener: Listener, draft_inbox: Inbox, target_inbox: Inbox
) -> None:
    plan = FaultPlan(kill_after=1)
    settings = LinkSettings()
    open_faulty = faulty_connector(lambda inbox: connect(listener.endpoint, inbox, settings, loop), incoming=plan)
    target = open_faulty(target_inbox)
    target.send(hello())
    first = draft_inbox.receive(20)
    assert first is not None
    for number in range(3):
        first[0].send(Opened(1, 0, number))
    assert target_inbox.receive(20) == (target, Opened(1, 0, 0))
    assert target_inbox.receive(20) == (target, StreamClosed("killed by the fault plan"))
    ended = draft_inbox.receive(20)
    assert ended is not None
    assert isinstance(ended[1], StreamClosed)
    assert target.closed
    assert target_inbox.receive(0.05) is None
