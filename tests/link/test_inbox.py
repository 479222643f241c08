"""The inbox: one consumer, many producers."""

from __future__ import annotations

import threading

from support.links import TO_TARGET, messages_of

from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.messages import Opened
from ssd_cluster.link.stream import Inbox


def test_receive_takes_the_oldest_and_none_after_the_timeout() -> None:
    inbox = Inbox()
    target, _ = pair(inbox, Inbox())
    inbox.put(target, TO_TARGET[0])
    inbox.put(target, TO_TARGET[1])
    assert inbox.receive(0) == (target, TO_TARGET[0])
    assert inbox.receive(1) == (target, TO_TARGET[1])
    assert inbox.receive(0) is None


def test_wait_tells_a_wake_from_a_timeout() -> None:
    inbox = Inbox()
    assert not inbox.wait(0)
    inbox.wake()
    assert inbox.wait(0)
    assert not inbox.wait(0.001)
    threading.Timer(0.01, inbox.wake).start()
    assert inbox.wait(10)


def test_nothing_is_lost_between_threads() -> None:
    inbox = Inbox()
    _, draft = pair(inbox, Inbox())
    threads = [threading.Thread(target=lambda n=n: [draft.send(Opened(n, 0, i)) for i in range(200)]) for n in range(4)]
    for thread in threads:
        thread.start()
    received: list[object] = []
    while len(received) < 800 and inbox.wait(5):
        received += messages_of(inbox)
    for thread in threads:
        thread.join(5)
    for n in range(4):
        assert [m.have_len for m in received if m.session == n] == list(range(200))  # type: ignore[attr-defined]
