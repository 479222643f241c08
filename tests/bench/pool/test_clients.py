"""What reaches a target that pulls, and one that asks for more than it may."""

from __future__ import annotations

from ssd_cluster.bench.pool.clients import GREED, Client, behave
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.messages import Block, BlockBatch, Branch, Load, Message, Opened, StepTimeModel, Welcome
from ssd_cluster.link.stream import Inbox, Stream

TREE = Block(1, 1, 1, 9, 7, (Branch(0, 5, (6,), -0.1),))
CHAIN = Block(2, 1, 1, 9, 7, (Branch(0, 5, (6,), 0.0, jit=True),))
WELCOME = Welcome("d", 1, "m", "t", 320, 8, 512, 64, 4, StepTimeModel(1.0, 1.0), 10.0)


def heard(client: Client, *messages: Message) -> list[Message]:
    """What a target's inbox holds after a draft has sent ``messages``."""
    inbox, ends = Inbox(), []

    def connect(target_inbox: Inbox) -> Stream:
        ends.extend(pair(target_inbox, Inbox()))
        return ends[0]

    stream = behave(connect, client)(inbox)
    for message in messages:
        ends[1].send(message)
    received = inbox.drain()
    assert all(one is stream for one, _ in received)
    ends[1].close("gone")
    assert len(inbox.drain()) == 1, "the end of the stream is heard by everyone"
    return [message for _, message in received]  # type: ignore[misc]


def test_push_changes_nothing() -> None:
    sent = (WELCOME, BlockBatch((TREE, CHAIN)), Load(64, 4))
    assert heard(Client.PUSH, *sent) == list(sent)


def test_pull_hears_chains_only() -> None:
    opened = Opened(1, 1, 9)
    assert heard(Client.PULL, opened, BlockBatch((TREE,)), BlockBatch((TREE, CHAIN))) == [opened, BlockBatch((CHAIN,))]


def test_a_greedy_target_believes_in_more_rows() -> None:
    welcome, load = heard(Client.GREEDY, WELCOME, Load(12, 4))
    assert isinstance(welcome, Welcome)
    assert isinstance(load, Load)
    assert (welcome.row_credit, load.row_credit) == (GREED * 64, GREED * 12)
    assert (welcome.session_credit, load.session_credit) == (4, 4)
