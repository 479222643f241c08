"""Tensor channels for tests: both ends in one process, and laws that both ends can compute."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch
from torch import Tensor

from ssd_cluster.config import LinkSettings
from ssd_cluster.draft.post import LawPost
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.messages import Attach, CompleteLaw, Law, Message, StreamClosed
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.link.tensor.inlet import LawInlet
from ssd_cluster.link.tensor.rows import LawRows, LawShape
from ssd_cluster.types import ProposalKind

CPU = torch.device("cpu")
PATIENCE_S = 20.0
TENSOR = {"timeout_s": 1.0, "retry_s": 0.05}


def link_settings(**tensor: Any) -> LinkSettings:
    return LinkSettings.model_validate({"laws": "tensor", "tensor": TENSOR | tensor})


def await_that(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.005)


def dense_rows(number: int, rows: int, vocabulary: int) -> tuple[Tensor, ...]:
    """Rows of law ``number``; the same in every process."""
    generator = torch.Generator().manual_seed(number)
    made = torch.rand(rows, vocabulary, generator=generator)
    return tuple((made / made.sum(-1, keepdim=True)).unbind(0))


def dense_law(number: int, rows: int, vocabulary: int) -> LawRows:
    return LawRows(1, 1, number, dense_rows(number, rows, vocabulary), vocabulary)


def sparse_law(number: int, rows: int, width: int, vocabulary: int) -> LawRows:
    generator = torch.Generator().manual_seed(number)
    ids = tuple(torch.randperm(vocabulary, generator=generator)[:width] for _ in range(rows))
    return LawRows(1, 1, number, dense_rows(number, rows, width), vocabulary, ids)


def copies(ids: Tensor | None, probabilities: Tensor) -> tuple[Tensor | None, Tensor]:
    return (None if ids is None else ids.clone()), probabilities.clone()


def process_state() -> tuple[int, int]:
    """Native threads and open files of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def nothing_beyond(before: tuple[int, int]) -> bool:
    """Whether there are no more threads and files than before; what an earlier test left may have gone meanwhile."""
    return all(now <= then for now, then in zip(process_state(), before, strict=True))


def listeners() -> set[tuple[str, int]]:
    """Addresses and ports that this process listens on; Ray's driver may hold some of its own."""
    return {tuple(c.laddr) for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN}


class DraftInbox(Inbox):
    """A draft's inbox whose rendezvous are answered at once."""

    def __init__(self) -> None:
        super().__init__()
        self.post: LawPost | None = None
        self.attached: list[Attach] = []

    def put(self, stream: Stream, message: Message | StreamClosed) -> None:
        if isinstance(message, Attach):
            self.attached.append(message)
            if self.post is not None:
                self.post.attach(stream, message, trusted=True)
            return
        super().put(stream, message)


class Watch(LawInlet):
    """An inlet that remembers announcements and failures."""

    def __init__(self, inner: Inbox, shape: LawShape, settings: LinkSettings, device: torch.device = CPU) -> None:
        self.failures: list[str] = []
        self.failed = threading.Event()
        self.announced = threading.Event()
        self.announcements: list[Law] = []
        super().__init__(inner, settings.tensor, shape, device, copies, self._note)

    def _note(self, reason: str) -> None:
        self.failures.append(reason)
        self.failed.set()

    def put(self, stream: Stream, message: Message | StreamClosed) -> None:
        if isinstance(message, Law) and message.channel:
            self.announcements.append(message)
            self.announced.set()
        super().put(stream, message)


class Ends:
    """Target's and draft's end in this process; ``draft`` of None: the test plays the draft itself."""

    def __init__(
        self,
        kind: ProposalKind,
        rows: int,
        width: int,
        *,
        draft: LinkSettings | None,
        target: LinkSettings | None = None,
        devices: tuple[str, str] = ("cpu", "cpu"),
    ) -> None:
        self.inbox, self.draft_inbox = Inbox(), DraftInbox()
        self.inlet = Watch(self.inbox, LawShape(kind, rows, width), target or link_settings(), torch.device(devices[0]))
        self.target, self.draft = pair(self.inlet, self.draft_inbox, codec=True)
        if draft is not None:
            self.draft_inbox.post = LawPost(draft, torch.device(devices[1]))

    @property
    def post(self) -> LawPost:
        assert self.draft_inbox.post is not None
        return self.draft_inbox.post

    def up(self) -> None:
        """Wait for the draft's end of a channel."""
        await_that(lambda: any(one._ready for one in self.post._senders.values()), "a channel")

    def next_law(self) -> Law:
        received = self.inbox.receive(PATIENCE_S)
        assert received is not None
        assert received[0] is self.target
        assert isinstance(received[1], Law)
        return received[1]

    def close(self) -> None:
        assert self.inlet.close(PATIENCE_S)
        if self.draft_inbox.post is not None:
            assert self.post.close(PATIENCE_S)
        self.target.close()


def entries(law: Law) -> tuple[Tensor | None, Tensor]:
    """Ids and probabilities that ``copies`` made."""
    assert isinstance(law, CompleteLaw)
    assert isinstance(law.content, tuple)
    return law.content
