"""Streams over real gRPC on loopback: order, counters, closing, many streams, refusals."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace

import pytest
from support.links import TO_DRAFT, TO_TARGET, block, commit_row, hello, welcome

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import ConfigError, InvalidFrame, LinkClosed, LinkError
from ssd_cluster.link.codec import encode
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import BlockBatch, CommitBatch, Hello, Message, Open, Opened, Ping, Pong, StreamClosed
from ssd_cluster.link.stream import Inbox, Received, Stream

SETTINGS = LinkSettings()
PATIENCE_S = 20.0


def take(inbox: Inbox) -> Received:
    received = inbox.receive(PATIENCE_S)
    assert received is not None, "nothing arrived"
    return received


def take_many(inbox: Inbox, n: int) -> list[Message | StreamClosed]:
    return [take(inbox)[1] for _ in range(n)]


def until(condition: object, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def met(listener: Listener, loop: LinkLoop, up: Inbox, down: Inbox) -> tuple[Stream, Stream]:
    """A connected stream and the draft's end of it."""
    target = connect(listener.endpoint, up, SETTINGS, loop)
    target.send(hello())
    draft, message = take(down)
    assert message == hello()
    return target, draft


def test_every_message_crosses_in_order(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target, draft = met(listener, loop, target_inbox, draft_inbox)
    sent = [m for m in TO_DRAFT if not isinstance(m, Ping)]
    for message in sent:
        target.send(message)
    assert take_many(draft_inbox, len(sent)) == sent
    for message in TO_TARGET:
        draft.send(message)
    assert take_many(target_inbox, len(TO_TARGET)) == list(TO_TARGET)
    assert target.bytes_sent == draft.bytes_received == sum(len(encode(m)) for m in (hello(), *sent))
    assert draft.bytes_sent == target.bytes_received == sum(len(encode(m)) for m in TO_TARGET)
    assert target.frames_dropped == draft.frames_dropped == 0


def test_thousands_of_rounds_arrive_in_order(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target, draft = met(listener, loop, target_inbox, draft_inbox)
    rounds = 2000
    for start in range(0, rounds, 500):
        for counter in range(start, start + 500):
            target.send(CommitBatch((commit_row(counter=counter),)))
        for counter in range(start, start + 500):
            stream, message = take(draft_inbox)
            assert isinstance(message, CommitBatch)
            assert message.rows[0].counter == counter
            stream.send(Opened(1, 0, counter))
    assert [m.have_len for m in take_many(target_inbox, rounds)] == list(range(rounds))  # type: ignore[union-attr]
    assert not target.closed
    assert not draft.closed


def test_a_ping_is_answered_without_the_engine(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target, _draft = met(listener, loop, target_inbox, draft_inbox)
    target.send(Ping(4711))
    assert take(target_inbox) == (target, Pong(4711))
    assert draft_inbox.drain() == []


def test_the_targets_close_ends_the_drafts_stream_after_what_was_sent(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target, draft = met(listener, loop, target_inbox, draft_inbox)
    for counter in range(50):
        target.send(CommitBatch((commit_row(counter=counter),)))
    target.close("enough")
    target.close("twice")
    assert target.closed
    with pytest.raises(LinkClosed, match="enough"):
        target.send(hello())
    received = take_many(draft_inbox, 51)
    assert [m.rows[0].counter for m in received[:-1]] == list(range(50))  # type: ignore[union-attr]
    assert isinstance(received[-1], StreamClosed)
    assert draft.closed
    assert draft_inbox.receive(0.05) is None
    assert target_inbox.receive(0.05) is None


def test_the_drafts_close_ends_the_targets_stream_with_its_reason(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target, draft = met(listener, loop, target_inbox, draft_inbox)
    for number in range(50):
        draft.send(Opened(1, 0, number))
    draft.close("wartung: höchste Zeit")
    received = take_many(target_inbox, 51)
    assert [m.have_len for m in received[:-1]] == list(range(50))  # type: ignore[union-attr]
    assert isinstance(received[-1], StreamClosed)
    assert "wartung: höchste Zeit" in received[-1].reason
    assert target.closed
    assert draft_inbox.receive(0.05) is None


def test_closing_from_both_sides_at_once(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    for _ in range(10):
        target, draft = met(listener, loop, target_inbox, draft_inbox)
        target.close("a")
        draft.close("b")
        assert target.closed
        assert draft.closed
        # The target's close may have arrived before the draft's own: then, and only then, the draft is told of it.
        assert all(stream is draft and isinstance(m, StreamClosed) for stream, m in draft_inbox.drain())
    listener.close()
    assert target_inbox.drain() == []
    assert draft_inbox.drain() == []


def test_closing_the_listener_tells_every_target_and_frees_the_port(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    streams = [met(listener, loop, target_inbox, draft_inbox)[0] for _ in range(3)]
    port = listener.port
    listener.close("maintenance")
    listener.close()
    ended = [take(target_inbox) for _ in streams]
    assert {stream for stream, _ in ended} == set(streams)
    assert all(isinstance(m, StreamClosed) and "maintenance" in m.reason for _, m in ended)
    with pytest.raises(LinkError):
        connect(f"127.0.0.1:{port}", target_inbox, SETTINGS, loop)
    again = Listener("127.0.0.1", port, draft_inbox, SETTINGS, loop)
    assert again.port == port
    again.close()


def test_many_streams_feed_one_inbox_each_in_its_own_order(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    targets = [connect(listener.endpoint, target_inbox, SETTINGS, loop) for _ in range(12)]

    def talk(name: int, target: Stream) -> None:
        target.send(hello(incarnation=name))
        for counter in range(50):
            target.send(CommitBatch((commit_row(session=name, counter=counter),)))

    threads = [threading.Thread(target=talk, args=item) for item in enumerate(targets)]
    for thread in threads:
        thread.start()
    owner: dict[Stream, int] = {}
    seen: dict[int, list[int]] = {name: [] for name in range(12)}
    for _ in range(12 * 51):
        stream, message = take(draft_inbox)
        if isinstance(message, Hello):
            owner[stream] = message.incarnation
        else:
            assert isinstance(message, CommitBatch)
            assert message.rows[0].session == owner[stream]
            seen[owner[stream]].append(message.rows[0].counter)
    for thread in threads:
        thread.join(5)
    assert seen == {name: list(range(50)) for name in range(12)}
    for stream, name in owner.items():
        stream.send(Opened(name, 0, name))
    answers = {take(target_inbox) for _ in targets}
    assert answers == {(target, Opened(name, 0, name)) for name, target in enumerate(targets)}


def test_a_message_too_large_for_a_frame_is_refused_and_the_stream_lives(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target, draft = met(listener, loop, target_inbox, draft_inbox)
    largest = TO_DRAFT[1]
    assert isinstance(largest, Open)
    with pytest.raises(InvalidFrame):
        target.send(replace(largest, tokens=(1,) * (1 << 20)))
    fits = replace(largest, tokens=(1,) * ((1 << 20) - 64))
    target.send(fits)
    assert take(draft_inbox) == (draft, fits)


def test_a_wrong_direction_is_refused_and_the_stream_lives(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target, draft = met(listener, loop, target_inbox, draft_inbox)
    with pytest.raises(InvalidFrame):
        target.send(welcome())
    draft.send(BlockBatch((block(),)))
    assert take(target_inbox) == (target, BlockBatch((block(),)))


def test_nothing_listens(loop: LinkLoop, target_inbox: Inbox) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(LinkError, match=f"no draft answers at 127.0.0.1:{port}: .*refused"):
        connect(f"127.0.0.1:{port}", target_inbox, SETTINGS, loop)


def test_what_listens_does_not_answer(loop: LinkLoop, target_inbox: Inbox) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        with pytest.raises(LinkError, match=f"127.0.0.1:{port} within 0.2 s"):
            connect(f"127.0.0.1:{port}", target_inbox, LinkSettings(connect_timeout_s=0.2), loop)


def test_a_port_that_is_taken(listener: Listener, loop: LinkLoop, draft_inbox: Inbox) -> None:
    with pytest.raises(LinkError, match=f"cannot listen on 127.0.0.1:{listener.port}: .*in use"):
        Listener("127.0.0.1", listener.port, draft_inbox, SETTINGS, loop)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "draft.example.org", ""])
def test_a_host_beyond_this_machine_is_refused_with_what_to_set(loop: LinkLoop, draft_inbox: Inbox, host: str) -> None:
    with pytest.raises(ConfigError, match=r"set link\.tls .* or set host to 127\.0\.0\.1") as caught:
        Listener(host, 0, draft_inbox, SETTINGS, loop)
    assert caught.value.param == "host"


@pytest.mark.parametrize("endpoint", ["10.1.2.3:50051", "[2001:db8::1]:50051", "draft.example.org:50051"])
def test_an_endpoint_beyond_this_machine_is_refused(loop: LinkLoop, target_inbox: Inbox, endpoint: str) -> None:
    with pytest.raises(ConfigError, match="not a loopback address"):
        connect(endpoint, target_inbox, SETTINGS, loop)


@pytest.mark.parametrize("endpoint", ["", "localhost", "127.0.0.1:", "127.0.0.1:x", ":50051", "127.0.0.1:70000"])
def test_a_malformed_endpoint_is_refused(loop: LinkLoop, target_inbox: Inbox, endpoint: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        connect(endpoint, target_inbox, SETTINGS, loop)


def test_localhost_is_this_machine(loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox) -> None:
    listener = Listener("localhost", 0, draft_inbox, SETTINGS, loop)
    met(listener, loop, target_inbox, draft_inbox)
    listener.close()
