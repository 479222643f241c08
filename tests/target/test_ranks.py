"""A target engine over two ranks: the text of one rank, and a clean end when a rank is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.model import random_tokens
from support.ranks import alive, load_ranks
from support.target_rig import Client, Rig, assert_clean, request, run, submit
from support.tiny import make_checkpoint

from ssd_cluster.config import DType, ModelSettings
from ssd_cluster.errors import EngineStopped, RankError
from ssd_cluster.model.batch import ForwardBatch
from ssd_cluster.model.parallel.launcher import LocalRanks
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.snapshot import gauge
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import Mode

TIMEOUT_S = 4.0
MODEL: dict[str, Any] = {"dtype": DType.FLOAT32, "kv_tokens": 4096, "block_size": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("ranks"), "qwen3", head_dim=32)


class Ranks:
    """A model over two processes, and engines on it."""

    def __init__(self, folder: Path, timeout_s: float = TIMEOUT_S) -> None:
        self.launcher = LocalRanks()
        self.runner = load_ranks(folder, 2, self.launcher, rank_timeout_s=timeout_s, **MODEL)
        self.pids = self.launcher.pids
        self.rig = Rig(self.runner, Tokenizer.load(folder), ModelSettings(path=str(folder), **MODEL))


@pytest.fixture
def ranks(folder: Path) -> Iterator[Ranks]:
    made = Ranks(folder)
    yield made
    made.runner.close()
    assert not alive(made.pids)


def texts(rig: Rig) -> list[list[list[int]]]:
    """Requests that meet chunked prefill, the prefix cache, preemption, several choices and sampling."""
    engine = rig.engine(Mode.AR, blocks=20, prefill_chunk=16, step_tokens=40, max_batch=4)
    long = random_tokens(70)
    first = run(engine, [request("warm", long, temperature=0.0, ignore_eos=True)])
    batch = [
        request("again", [*long[:64], 9, 9], temperature=0.0, ignore_eos=True, max_tokens=30),
        request("drawn", random_tokens(50, seed=2), temperature=1.0, ignore_eos=True, max_tokens=30),
        request("two", random_tokens(20, seed=3), temperature=0.8, top_p=0.9, n=2, ignore_eos=True, max_tokens=25),
    ]
    rest = run(engine, batch)
    gauge(engine.metrics, engine._runner.pool, engine.drafts, engine._pilot, engine._scheduler)
    assert engine.metrics.preemptions._value.get() > 0
    assert_clean(engine)
    return [client.tokens for client in first + rest]


def until(condition: Callable[[], Any], deadline_s: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def serving(ranks: Ranks) -> tuple[TargetEngine, Client]:
    """An engine on its thread, in the middle of a request that would go on for long."""
    engine = ranks.rig.engine(Mode.AR)
    engine.start()
    endless = request("endless", random_tokens(20), temperature=0.0, ignore_eos=True, max_tokens=480)
    (client,) = submit(engine, [endless])
    until(lambda: client.tokens[0])
    return engine, client


def test_text_equals_one_rank_and_a_stopped_idle_rank_is_noticed(folder: Path, ranks: Ranks) -> None:
    assert texts(ranks.rig) == texts(Rig.load(folder))
    engine = ranks.rig.engine(Mode.AR)
    engine.start()
    assert engine.healthy()
    os.kill(ranks.pids[0], signal.SIGSTOP)
    until(lambda: not engine.healthy())
    assert "said nothing" in str(ranks.runner.failure)
    until(lambda: not alive(ranks.pids))
    with pytest.raises(RankError, match="said nothing"):
        ranks.runner.forward(ForwardBatch())
    engine.stop()


@pytest.mark.parametrize("lost", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_in_a_request_fails_the_engine(ranks: Ranks, lost: signal.Signals) -> None:
    engine, client = serving(ranks)
    os.kill(ranks.pids[0], lost)
    until(lambda: client.finished)
    assert client.finished is not None
    assert client.finished.error == "the engine has failed: RankError"
    assert len(client.tokens[0]) < 480
    assert not engine.healthy()
    with pytest.raises(EngineStopped):
        submit(engine, [request("late", [5])])
    until(lambda: not alive(ranks.pids))
    engine.stop()


PARENT = """
import sys, time
from ssd_cluster.config import ModelSettings
from ssd_cluster.model.runner import load_runner
if __name__ == "__main__":
    load_runner(ModelSettings(path=sys.argv[1], kv_tokens=64, tensor_parallel=2))
    print("ready", flush=True)
    time.sleep(600)
"""


def test_ranks_do_not_outlive_a_killed_parent(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "ready\n"
            ranks = [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
            assert len(ranks) == 1
        finally:
            parent.kill()
    until(lambda: not alive(ranks))
