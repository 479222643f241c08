"""Links for tests: a manual timer, one sample of every message, a connected pair over gRPC."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from ssd_cluster.link.laws import pack_law
from ssd_cluster.link.messages import (
    Attach,
    Attached,
    Block,
    BlockBatch,
    Branch,
    Close,
    CommitBatch,
    CommitRow,
    Hello,
    Law,
    Load,
    Message,
    Nack,
    NackCode,
    Next,
    Open,
    Opened,
    Ping,
    Pong,
    Pull,
    StepTimeModel,
    Welcome,
)
from ssd_cluster.link.stream import Inbox
from ssd_cluster.types import BlockOrigin, ProposalKind

SESSION = 0x9F3A_0000_0000_0001


class ManualTimer:
    """A timer whose time the test moves; callbacks run inside ``advance``."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._number), callback))

    def advance(self, seconds: float) -> None:
        """Move time on and run what is due, in order; callbacks may schedule more."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, callback = heapq.heappop(self._due)
            callback()
        self.now = end


def hello(**changes: object) -> Hello:
    return Hello(**({"target_id": "t", "incarnation": 7, "tokenizer_hash": "abc", "vocabulary": 1000} | changes))


def welcome(**changes: object) -> Welcome:
    values = {
        "draft_id": "d",
        "incarnation": 9,
        "model_hash": "m",
        "tokenizer_hash": "abc",
        "vocabulary": 1000,
        "k_max": 8,
        "max_context": 2048,
        "row_credit": 256,
        "session_credit": 64,
        "step_time": StepTimeModel(1200.5, 30.25),
        "session_ttl_s": 10.0,
    }
    return Welcome(**(values | changes))


def commit_row(number: int = 0, **changes: object) -> CommitRow:
    values = {
        "session": SESSION + number,
        "epoch": 1,
        "from_len": 20,
        "tokens": (5, 6, 7),
        "next": Next.TOKENS,
        "k": 5,
        "rows": 16,
        "counter": 3,
        "due_us": 14_000,
        "proposal": (8, 9),
        "proposal_kind": ProposalKind.COUPLED,
        "origin": BlockOrigin(4, 2, 1),
    }
    return CommitRow(**(values | changes))


def block(number: int = 0, branches: int = 3, depth: int = 4) -> Block:
    made = tuple(
        Branch(k=i % 4, t_star=10 + i, tokens=tuple(range(i, i + depth)), score=-0.5 * i, jit=i == 2)
        for i in range(branches)
    )
    return Block(SESSION + number, 1, 11, 23, 0xDEADBEEF, made)


TO_DRAFT: tuple[Message, ...] = (
    hello(),
    Open(
        SESSION, 1, (1, 2, 3), ProposalKind.COUPLED, 0.7, 2**64 - 1, 50, 0.95, (2,), 300, 5, 16, -1, (0, 5), 64, 0.5, 4
    ),
    CommitBatch((commit_row(), commit_row(1, next=Next.WAIT, proposal=(), origin=None, deadline_us=9, finish=True))),
    Pull(SESSION, 1, 23, 5, 2_000),
    Close((SESSION, 1)),
    Attach(1, "gloo", 1000, "0/0", b"\x00\x01"),
    Ping(77),
)
TO_TARGET: tuple[Message, ...] = (
    welcome(),
    Opened(SESSION, 1, 3),
    BlockBatch((block(), block(1))),
    pack_law(SESSION, 1, 5, ProposalKind.SPARSE, ((0.25, 0.75), (1.0,)), ((1, 2), (3,))),
    Law(SESSION, 1, 5, ProposalKind.DENSE, (1000, 1000), b"", b"", 2, 7),
    Attached(2, "0/1", b"\x02"),
    Nack(SESSION, 1, NackCode.GAP, 17, 250, "gap"),
    Load(100, 10, 5, 900, True),
    Pong(78),
)


def messages_of(inbox: Inbox) -> list[object]:
    """Everything in an inbox, without the streams."""
    return [message for _, message in inbox.drain()]
