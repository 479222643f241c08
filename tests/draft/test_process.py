"""The draft in a process of its own, over gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.tiny import make_checkpoint

from ssd_cluster.config import DraftSettings, LinkSettings, ModelSettings
from ssd_cluster.draft.launcher import DraftProcess
from ssd_cluster.errors import EngineStopped, StartupError
from ssd_cluster.link.grpc_backend import connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import BlockBatch, Hello, Open, StreamClosed
from ssd_cluster.link.stream import Inbox
from ssd_cluster.text import Tokenizer
from ssd_cluster.types import ProposalKind


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> DraftSettings:
    folder = make_checkpoint(tmp_path_factory.mktemp("draft"))
    model = ModelSettings(path=str(folder), kv_tokens=1024, cores=(0,))
    return DraftSettings(model=model, max_step_rows=8, row_credit=16)


def wait_for(inbox: Inbox, kind: type) -> object:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        received = inbox.receive(1.0)
        if received is not None and isinstance(received[1], kind):
            return received[1]
    raise AssertionError(f"no {kind.__name__}")


def wait_for_report(draft: DraftProcess, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        report = draft.report()
        if good(report):
            return report
        time.sleep(0.01)
    raise AssertionError(f"the draft still says {report}")


def test_serves_is_killed_and_ends_with_its_parent(settings: DraftSettings) -> None:
    tokenizer = Tokenizer.load(Path(settings.model.path))
    with DraftProcess(settings) as first, DraftProcess(settings) as second, LinkLoop() as loop:
        assert first.pid != second.pid
        assert psutil.Process(first.pid).environ()["OMP_NUM_THREADS"] == "1"
        assert psutil.Process(first.pid).cpu_affinity() == [0]
        inbox = Inbox()
        stream = connect(first.endpoint, inbox, LinkSettings(), loop)
        stream.send(Hello("t", 1, tokenizer.hash, tokenizer.vocabulary))
        stream.send(Open(1, 1, (3, 4, 5), ProposalKind.COUPLED, 1.0, 7, 0, 1.0, (), 100, 3, 4))
        before = first.report()
        assert wait_for(inbox, BlockBatch).blocks[0].session == 1
        after = wait_for_report(first, lambda report: report["snapshot"]["peaks"]["sessions"] > 0)
        assert after["at"] >= before["at"]
        assert after["metrics"]["ssd:draft_steps_total"] >= 1
        assert after["metrics"]["ssd:draft_row_steps_total{kind=glue}"] >= 1
        assert after["snapshot"]["sessions"] == after["snapshot"]["peaks"]["sessions"] == 1
        first.kill()
        assert not first.alive
        with pytest.raises(EngineStopped, match="does not answer"):
            first.report()
        wait_for(inbox, StreamClosed)
        assert second.alive
        assert second.close(60) == 0
        assert not psutil.pid_exists(second.pid)


def test_failed_start_says_why(settings: DraftSettings, tmp_path: Path) -> None:
    broken = settings.model_copy(update={"model": ModelSettings(path=str(tmp_path))})
    with pytest.raises(StartupError, match=r"config\.json"):
        DraftProcess(broken)


def test_a_missing_secret_is_said_before_a_model_is_loaded(settings: DraftSettings, tmp_path: Path) -> None:
    link = LinkSettings(token_file=tmp_path / "token")
    unguarded = settings.model_copy(update={"model": ModelSettings(path=str(tmp_path)), "link": link})
    with pytest.raises(StartupError, match=r"link\.token_file: cannot read .*token"):
        DraftProcess(unguarded)


def test_start_has_a_deadline(settings: DraftSettings) -> None:
    with pytest.raises(StartupError, match=r"within 0\.01 s"):
        DraftProcess(settings, start_timeout_s=0.01)
