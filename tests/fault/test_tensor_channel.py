"""A draft process dies, stops or falls silent while a law is on its way: nothing waits for it, it is used again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.law_draft import HELD
from support.law_links import PATIENCE_S, Watch, await_that, dense_rows, entries, link_settings
from support.links import commit_row, hello

from ssd_cluster.link.grpc_backend import connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import CommitBatch, CompleteLaw, Load, Welcome
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.link.tensor.rows import LawShape
from ssd_cluster.types import ProposalKind

ROWS, VOCABULARY = 8, 151_936  # more than a frame: such a law comes as tensors or not at all
pytestmark = pytest.mark.timeout(200)


class Child:
    """The process of ``law_draft``."""

    def __init__(self) -> None:
        tests = Path(__file__).resolve().parents[1]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.law_draft", str(ROWS), str(VOCABULARY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()

    def let_go(self) -> None:
        """The law that is held back may go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def children() -> Iterator[list[Child]]:
    made: list[Child] = [Child()]
    yield made
    for child in made:
        child.close()


class Target:
    """A target's end over gRPC, with a channel asked for as the engine does."""

    def __init__(self, loop: LinkLoop) -> None:
        self.inbox = Inbox()
        self.inlet = Watch(self.inbox, LawShape(ProposalKind.DENSE, ROWS, VOCABULARY), link_settings())
        self._loop = loop

    def connect(self, child: Child) -> Stream:
        stream = connect(child.endpoint, self.inlet, link_settings(), self._loop)
        stream.send(hello(vocabulary=VOCABULARY))
        await_that(lambda: any(s is stream and isinstance(m, Welcome) for s, m in self.inbox.drain()), "the Welcome")
        self.inlet.attach(stream)
        return stream

    def ask(self, stream: Stream, number: int) -> None:
        stream.send(CommitBatch((commit_row(counter=number),)))

    def used(self, stream: Stream, first: int) -> int:
        """Ask for laws until one comes; the number of it."""
        number = first

        def came() -> bool:
            nonlocal number
            self.ask(stream, number)
            for _ in range(20):
                received = self.inbox.receive(0.1)
                if received is None:
                    continue
                law = received[1]
                if isinstance(law, CompleteLaw) and received[0] is stream:
                    number = law.fingerprint
                    assert torch.equal(entries(law)[1], torch.stack(dense_rows(number, ROWS, VOCABULARY)))
                    return True
            number += 1
            return False

        await_that(came, "a law by tensor")
        return number


@pytest.mark.parametrize("fault", ["silent", "stopped", "killed"])
def test_a_law_that_does_not_end(children: list[Child], fault: str) -> None:
    child = children[-1]
    with LinkLoop() as loop:
        target = Target(loop)
        stream = target.connect(child)
        target.used(stream, 1)
        target.inlet.announced.clear()
        target.ask(stream, HELD)
        assert target.inlet.announced.wait(PATIENCE_S)
        if fault != "silent":
            os.kill(child.process.pid, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        # the announcement is taken, nothing is received, and messages go on to the engine all the while
        target.inlet.put(stream, Load(1, 1))
        await_that(lambda: (stream, Load(1, 1)) in target.inbox.drain(), "a message past the law")
        if fault == "killed":
            children.append(Child())
            stream = target.connect(children[-1])
        else:
            assert target.inlet.failed.wait(PATIENCE_S)
            if fault == "stopped":
                os.kill(child.process.pid, signal.SIGCONT)
            child.let_go()
        number = target.used(stream, 200)
        assert number >= 200, "the law that was given up came after all"
        assert target.inlet.announcements[-1].fingerprint == number
        assert target.inlet.close(PATIENCE_S)
        stream.close()
