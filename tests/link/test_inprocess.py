"""The in-process pair behaves like a stream between processes."""

from __future__ import annotations

import threading

import pytest
from support.links import TO_DRAFT, TO_TARGET, commit_row, hello, messages_of, welcome

from ssd_cluster.errors import ConfigError, InvalidFrame, LinkClosed
from ssd_cluster.link.codec import encode
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.limits import MAX_INVALID_FRAMES, Limits
from ssd_cluster.link.messages import CommitBatch, Ping, Pong, StreamClosed
from ssd_cluster.link.stream import Inbox


@pytest.mark.parametrize("codec", [False, True])
def test_messages_arrive_in_order_with_the_receivers_own_stream(codec: bool) -> None:
    up, down = Inbox(), Inbox()
    target, draft = pair(up, down, codec=codec)
    sent_down = [m for m in TO_DRAFT if not isinstance(m, Ping)]
    for message in sent_down:
        target.send(message)
    for message in TO_TARGET:
        draft.send(message)
    assert down.drain() == [(draft, message) for message in sent_down]
    assert up.drain() == [(target, message) for message in TO_TARGET]


@pytest.mark.parametrize("codec", [False, True])
def test_a_ping_is_answered_by_the_stream(codec: bool) -> None:
    up, down = Inbox(), Inbox()
    target, _draft = pair(up, down, codec=codec)
    target.send(Ping(5))
    assert messages_of(down) == []
    assert messages_of(up) == [Pong(5)]


def test_frames_are_counted_and_validated_with_the_codec_only() -> None:
    up, down = Inbox(), Inbox()
    target, draft = pair(up, down, codec=True)
    target.send(hello())
    assert target.bytes_sent == draft.bytes_received == len(encode(hello())) > 0
    draft.send(welcome(vocabulary=10))
    bad = CommitBatch((commit_row(tokens=(10,), proposal=()),))
    target.send(bad)
    assert messages_of(down) == [hello()]
    assert draft.frames_dropped == 1
    plain_target, plain_draft = pair(up, down)
    plain_target.send(bad)
    assert plain_target.bytes_sent == plain_draft.bytes_received == 0
    assert messages_of(down) == [bad]


def test_repeated_invalid_frames_end_the_stream_for_both() -> None:
    up, down = Inbox(), Inbox()
    target, draft = pair(up, down, codec=True, limits=Limits(vocabulary=10))
    bad = CommitBatch((commit_row(tokens=(10,), proposal=()),))
    for _ in range(MAX_INVALID_FRAMES):
        target.send(bad)
    assert not target.closed
    target.send(bad)
    assert target.closed
    assert draft.closed
    (closed_up,), (closed_down,) = messages_of(up), messages_of(down)
    assert isinstance(closed_up, StreamClosed)
    assert isinstance(closed_down, StreamClosed)


def test_the_wrong_direction_is_refused_at_the_sender() -> None:
    target, draft = pair(Inbox(), Inbox(), codec=True)
    with pytest.raises(InvalidFrame):
        target.send(welcome())
    with pytest.raises(InvalidFrame):
        draft.send(hello())


def test_close_reaches_the_peer_once_and_not_the_closer() -> None:
    up, down = Inbox(), Inbox()
    target, draft = pair(up, down)
    target.close("enough")
    target.close("again")
    draft.close("me too")
    assert down.drain() == [(draft, StreamClosed("enough"))]
    assert up.drain() == []
    for stream, message in ((target, hello()), (draft, welcome())):
        assert stream.closed
        with pytest.raises(LinkClosed):
            stream.send(message)


def test_closing_from_both_sides_at_once_gives_at_most_one_notice() -> None:
    for _ in range(50):
        up, down = Inbox(), Inbox()
        target, draft = pair(up, down)
        start = threading.Barrier(2)

        def close(stream: object, start: threading.Barrier = start) -> None:
            start.wait(5)
            stream.close("both")  # type: ignore[attr-defined]

        threads = [threading.Thread(target=close, args=(stream,)) for stream in (target, draft)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
        assert len(up.drain()) + len(down.drain()) == 1


def test_limits_without_the_codec_are_refused() -> None:
    with pytest.raises(ConfigError):
        pair(Inbox(), Inbox(), limits=Limits())
