"""Ways in which a target may use the link, by changing what reaches it; the target engine itself is always the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from ssd_cluster.link.messages import BlockBatch, Load, Message, StreamClosed, Welcome
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.replica import Connector

Change = Callable[[Message], Message | None]


class Client(StrEnum):
    """``PUSH``: as in service.

    ``PULL``: blocks that the draft pushes never arrive. The target, with miss policy ``always_wait``, tells the draft
    each outcome with a commit that waits, and the draft answers with what it has drafted behind that outcome, or drafts
    it then: every round has one round trip, and a step boundary of the draft, on its critical path.

    ``GREEDY``: credits arrive ten times as high as they are, so that the target asks for ten times its rows.
    """

    PUSH = "push"
    PULL = "pull"
    GREEDY = "greedy"


GREED = 10


def behave(connector: Connector, client: Client) -> Connector:
    """A connector of a target that behaves so."""
    change = _CHANGES.get(client)
    if change is None:
        return connector
    chosen = change

    def connect(inbox: Inbox) -> Stream:
        return connector(ChangedInbox(inbox, chosen))

    return connect


class ChangedInbox(Inbox):
    """What a stream puts here reaches ``inner`` changed, or, where ``change`` says None, not at all."""

    def __init__(self, inner: Inbox, change: Change) -> None:
        super().__init__()
        self._inner = inner
        self._change = change

    def put(self, stream: Stream, message: Message | StreamClosed) -> None:
        changed = message if isinstance(message, StreamClosed) else self._change(message)
        if changed is not None:
            self._inner.put(stream, changed)


def _without_trees(message: Message) -> Message | None:
    if not isinstance(message, BlockBatch):
        return message
    chains = tuple(block for block in message.blocks if block.branches and block.branches[0].jit)
    return BlockBatch(chains) if chains else None


def _with_more_credit(message: Message) -> Message:
    if isinstance(message, (Welcome, Load)):
        return replace(message, row_credit=GREED * message.row_credit)
    return message


_CHANGES: dict[Client, Change] = {Client.PULL: _without_trees, Client.GREEDY: _with_more_credit}
