"""Target engine and a real draft process in ratio mode, laws by tensor: rounds go on whatever happens to the draft."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine_pair import draft_settings
from support.law_links import link_settings
from support.target_rig import Client, Rig, assert_clean, connect, drain, request, submit
from support.tiny import make_checkpoint, perturb
from torch import Tensor

from ssd_cluster.draft.launcher import DraftProcess
from ssd_cluster.link.grpc_backend import connect as connect_grpc
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.types import Mode

pytestmark = pytest.mark.timeout(300)

PATIENCE_S = 60.0
DOMAIN = "tests"
LINK = link_settings(timeout_s=30.0)  # longer than what a stopped draft is left alone for: a transfer is under way
SPECULATION = {"kind": "dense", "k": 3, "rows": 8, "miss_policy": "always_wait", "wait_ms": 50.0, "fallback": "none"}
REQUESTS = [
    request(f"r{i}", range(5 + 30 * i, 25 + 30 * i), temperature=0.9, seed=i, max_tokens=400, ignore_eos=True)
    for i in range(2)
]


class Pair:
    """A stepped engine over gRPC, the current draft process, and the number of laws that came by tensor."""

    def __init__(self, rig: Rig, draft: Path, loop: LinkLoop) -> None:
        self._settings = draft_settings(draft, trust_domain=DOMAIN, link=LINK)
        self._loop = loop
        self.process = DraftProcess(self._settings)
        self.by_tensor = 0
        breaker = {"window": 1000, "retry_s": 0.05}
        fields: dict[str, Any] = {"speculation": SPECULATION, "breaker": breaker, "link": LINK, "trust_domain": DOMAIN}
        self.engine: TargetEngine = rig.engine(Mode.SSD, [self._connect], **fields)
        self.clients: list[Client] = []
        inlet = self.engine.drafts.links._inlet
        assert inlet is not None
        read = inlet._read

        def counted(ids: Tensor | None, probabilities: Tensor) -> object:
            self.by_tensor += 1
            return read(ids, probabilities)

        inlet._read = counted

    def _connect(self, inbox: Inbox) -> Stream:
        return connect_grpc(self.process.endpoint, inbox, LINK, self._loop)

    def replace(self) -> None:
        self.process = DraftProcess(self._settings)

    def value(self, name: str, **labels: str) -> float:
        return self.engine.metrics.registry.get_sample_value(name, labels) or 0.0

    def emitted(self) -> list[int]:
        return [sum(map(len, client.tokens)) for client in self.clients]

    def step_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, what
            self.engine.step()
            time.sleep(0.002)
            assert all(client.finished is None for client in self.clients), f"the streams ended before: {what}"

    def use_tensors(self, what: str) -> None:
        before = self.by_tensor
        self.step_until(lambda: self.by_tensor > before + 3, what)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    target = make_checkpoint(tmp_path / "target")
    with LinkLoop() as loop:
        made = Pair(Rig.load(target), perturb(target, tmp_path / "draft", 0.02), loop)
        yield made
        made.engine.stop()
        made.process.close()


def test_rounds_go_on_while_a_law_does_not_end(pair: Pair) -> None:
    connect(pair.engine, PATIENCE_S)
    pair.clients = submit(pair.engine, REQUESTS)
    pair.use_tensors("laws by tensor")

    os.kill(pair.process.pid, signal.SIGSTOP)
    stopped_at = pair.emitted()
    pair.step_until(lambda: all(n >= m + 20 for n, m in zip(pair.emitted(), stopped_at, strict=True)), "20 tokens")
    assert pair.value("ssd:draft_failures_total", reason="tensor") == 0, "rounds waited for the end of a transfer"
    os.kill(pair.process.pid, signal.SIGCONT)
    pair.use_tensors("laws of the draft that was stopped")

    pair.process.kill()
    pair.step_until(lambda: pair.value("ssd:draft_failures_total", reason="stream") > 0, "the loss is noticed")
    pair.replace()
    pair.use_tensors("laws of the new draft")

    for one in REQUESTS:
        pair.engine.abort(one.request_id)
    drain(pair.engine)
    assert all(client.finished is not None and client.finished.error is None for client in pair.clients)
    assert pair.value("ssd:laws_total", result="refused") == 0
    assert_clean(pair.engine)
