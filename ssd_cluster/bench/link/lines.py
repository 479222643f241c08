"""Open links to echoing drafts, one for every backend, and one round over them."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum

import torch

from ssd_cluster.bench.link.echo import Echo, EchoSettings
from ssd_cluster.bench.link.shape import Payload, Shape
from ssd_cluster.config import LawTransport, LinkSettings, child_environment
from ssd_cluster.config_link import TlsSettings
from ssd_cluster.errors import LinkError, StartupError
from ssd_cluster.link.grpc_backend import connect
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.laws import law_bytes
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import BlockBatch, CompleteLaw, Law, StreamClosed, Welcome
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.link.tensor.inlet import LawInlet
from ssd_cluster.link.tensor.rows import LawShape

_START_S = 60.0
_ROUND_S = 10.0


class Backend(StrEnum):
    """``INPROCESS``: messages by reference; ``CODEC``: through their frames; the others between two processes.
    ``TENSOR``: gRPC for everything but laws, which travel over gloo.
    """

    INPROCESS = "inprocess"
    CODEC = "codec"
    GRPC = "grpc"
    TLS = "grpc-tls"
    TENSOR = "tensor"

    @property
    def frames(self) -> bool:
        """Whether messages become bytes."""
        return self is not Backend.INPROCESS

    @property
    def laws_in_frames(self) -> bool:
        return self in (Backend.CODEC, Backend.GRPC, Backend.TLS)


def unfit(backend: Backend, shape: Shape) -> str | None:
    """Why a round of this shape makes no sense over this backend, or None."""
    if shape.payload is Payload.BLOCKS:
        return "only laws travel on it" if backend is Backend.TENSOR else None
    size = law_bytes(shape.kind, shape.k, shape.width, shape.width)
    limit = LinkSettings().frame_bytes
    if backend.laws_in_frames and size > limit:
        return f"a law takes {size} bytes, more than the {limit} of a frame"
    return None


class Line:
    """The target's end of an open link.

    Args:
        stream: to the echo.
        inbox: of the target.
        shape: of the rounds.
        whole_laws: laws must come over a tensor channel.
    """

    def __init__(self, stream: Stream, inbox: Inbox, shape: Shape, *, whole_laws: bool) -> None:
        self.stream = stream
        self._inbox = inbox
        self._commit = shape.commit()
        self._laws = 0 if shape.payload is Payload.BLOCKS else shape.batch
        self._wanted = CompleteLaw if whole_laws else Law

    def round_trip(self) -> float:
        """Seconds from sending a commit until its blocks, and laws, are all in the inbox.

        Raises:
            LinkError: the stream ended, or the answer is not whole by the deadline.
        """
        began = time.perf_counter()
        self.stream.send(self._commit)
        if self._answer(began + _ROUND_S) < self._laws:
            raise LinkError("laws came in frames, though a tensor channel was up")
        return time.perf_counter() - began

    def warm_up(self, n: int) -> None:
        """Rounds that are not counted: ``n``, and as many as it takes until a tensor channel is up."""
        deadline = time.perf_counter() + _START_S
        while n > 0 or self._laws:
            self.stream.send(self._commit)
            ready = self._answer(deadline) == self._laws
            n -= 1
            if n <= 0 and ready:
                return
            if not ready:
                time.sleep(0.01)
                if time.perf_counter() > deadline:
                    raise LinkError(f"no tensor channel within {_START_S:g} s")

    def _answer(self, deadline: float) -> int:
        """Wait for one whole answer; returns how many of its laws came the way they should."""
        blocks = laws = right = 0
        while not blocks or laws < self._laws:
            received = self._inbox.receive(deadline - time.perf_counter())
            if received is None:
                raise LinkError(f"{blocks} blocks and {laws} of {self._laws} laws came before the deadline")
            message = received[1]
            if isinstance(message, StreamClosed):
                raise LinkError(f"the stream ended: {message.reason}")
            blocks += isinstance(message, BlockBatch)
            if isinstance(message, Law):
                laws += 1
                right += isinstance(message, self._wanted)
        return right


@contextmanager
def open_line(
    backend: Backend, shape: Shape, loop: LinkLoop, draft_cores: tuple[int, ...] | None, tls: TlsSettings | None
) -> Iterator[Line]:
    """A link to an echo, ready to measure.

    Args:
        backend: ``unfit`` has nothing against it.
        shape: of the rounds.
        loop: of this process; one for all links, for gRPC wakes every loop that there is.
        draft_cores: of an echo in a process of its own.
        tls: for ``grpc-tls``.

    Raises:
        StartupError: the echo does not start.
        LinkError: it cannot be reached.
    """
    tensor = backend is Backend.TENSOR
    link = LinkSettings(
        laws=LawTransport.TENSOR if tensor else LawTransport.GRPC, tls=tls if backend is Backend.TLS else None
    )
    with ExitStack() as stack:
        inbox = Inbox()
        inlet = stack.enter_context(_inlet(inbox, link, shape)) if tensor else None
        if backend in (Backend.INPROCESS, Backend.CODEC):
            stream = stack.enter_context(_here(backend, shape, link, inbox))
        else:
            endpoint = stack.enter_context(_echo_process(EchoSettings(shape=shape, link=link, cores=draft_cores)))
            stream = connect(endpoint, inlet or inbox, link, loop)
        stream.send(shape.hello())
        welcome = inbox.receive(_ROUND_S)
        if welcome is None or not isinstance(welcome[1], Welcome):
            raise LinkError(f"no welcome over {backend.value}: {welcome and welcome[1]}")
        if inlet is not None:
            inlet.attach(stream)
        yield Line(stream, inbox, shape, whole_laws=tensor)
        stream.close()


@contextmanager
def _here(backend: Backend, shape: Shape, link: LinkSettings, inbox: Inbox) -> Iterator[Stream]:
    """An echo on a thread of this process."""
    draft_inbox = Inbox()
    stream, _ = pair(inbox, draft_inbox, codec=backend is Backend.CODEC)
    echo = Echo(shape, link, draft_inbox)
    thread = threading.Thread(target=echo.run, name="bench-echo", daemon=True)
    thread.start()
    try:
        yield stream
    finally:
        echo.stop.set()
        draft_inbox.wake()
        thread.join(_ROUND_S)


@contextmanager
def _inlet(inbox: Inbox, link: LinkSettings, shape: Shape) -> Iterator[LawInlet]:
    law = LawShape(shape.kind, shape.k, shape.width)
    inlet = LawInlet(inbox, link.tensor, law, torch.device("cpu"), lambda ids, rows: None, lambda reason: None)
    try:
        yield inlet
    finally:
        inlet.close(_ROUND_S)


@contextmanager
def _echo_process(settings: EchoSettings) -> Iterator[str]:
    """The endpoint of an echo in a process of its own, which ends with its standard input."""
    child = subprocess.Popen(
        [sys.executable, "-m", "ssd_cluster.bench.link.echo"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(1),
        text=True,
    )
    try:
        if child.stdin is None or child.stdout is None:
            raise StartupError("the echo process has no pipes")
        child.stdin.write(settings.model_dump_json() + "\n")
        child.stdin.flush()
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        stdout = child.stdout
        threading.Thread(target=lambda: lines.put(stdout.readline()), name="echo-start", daemon=True).start()
        try:
            endpoint = str(json.loads(lines.get(timeout=_START_S))["endpoint"])
        except (queue.Empty, ValueError) as error:
            raise StartupError(f"the echo process did not start: {error!r}") from None
        yield endpoint
    finally:
        child.stdin.close() if child.stdin is not None else None
        try:
            child.wait(_ROUND_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(_ROUND_S)
        if child.stdout is not None:
            child.stdout.close()
