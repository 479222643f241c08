"""Blocks of a real (tiny, random) model equal sequential decoding of it: pages, cascade attention, tails, noise."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny import make_checkpoint

from ssd_cluster.config import DraftSettings, DType, ModelSettings
from ssd_cluster.draft.engine import DraftEngine, load_draft
from ssd_cluster.errors import EngineStopped
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    CommitBatch,
    CommitRow,
    Hello,
    Next,
    Open,
    Welcome,
)
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.runner import ModelRunner, load_runner
from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.sampling.noise import NoiseSource
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.types import ProposalKind

PROMPT = tuple(range(40, 75))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("draft"), vocab=328)


def draft_settings(checkpoint: Path, **changes: object) -> DraftSettings:
    model = ModelSettings(path=str(checkpoint), dtype=DType.FLOAT32, kv_tokens=1024, block_size=8)
    return DraftSettings(**({"model": model, "k_max": 6, "row_credit": 32, "prefill_chunk": 16} | changes))


class Reference:
    """Plain decoding with a runner of its own, every step from scratch."""

    def __init__(self, checkpoint: Path, vocabulary: int) -> None:
        model = ModelSettings(path=str(checkpoint), dtype=DType.FLOAT32, kv_tokens=512, prefix_cache=False)
        self.runner: ModelRunner = load_runner(model)
        self.vocabulary = vocabulary
        self.table = self.runner.pool.allocate(self.runner.pool.n_total)

    def decode(self, tokens: tuple[int, ...], n: int, message: Open) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < n and not (drawn and drawn[-1] in message.stop_ids):
            context = [*tokens, *drawn]
            batch = ForwardBatch([CausalSpan(context, 0, self.table, len(context) - 1)])
            logits = self.runner.forward(batch)[:, : self.vocabulary]
            params = RowParams(message.temperature, message.top_k, message.top_p)
            noise = None if params.greedy else NoiseSource(message.seed, self.vocabulary).row(len(context))
            drawn.append(int(coupled_sample(process(logits, [params]), [noise])[0]))
        return drawn


class Target:
    """The target's end."""

    def __init__(self, engine: DraftEngine, inbox: Inbox) -> None:
        self.inbox = Inbox()
        self.stream: Stream
        self.stream, _ = pair(self.inbox, inbox, codec=True)
        welcome = engine.welcome
        self.stream.send(Hello("t", 1, welcome.tokenizer_hash, welcome.vocabulary))

    def newest(self) -> dict[int, Block]:
        batches = [message for _, message in self.inbox.drain() if isinstance(message, BlockBatch)]
        return {block.session: block for batch in batches for block in batch.blocks}


def settle(engine: DraftEngine) -> None:
    for _ in range(200):
        if not engine.step():
            return
    raise AssertionError("the draft is still busy after 200 steps")


@pytest.mark.parametrize("law", [(0.0, 0, 1.0), (1.0, 0, 1.0), (0.7, 0, 0.9), (1.0, 30, 1.0)])
def test_every_branch_equals_sequential_decoding(checkpoint: Path, law: tuple[float, int, float]) -> None:
    inbox = Inbox()
    engine = load_draft(draft_settings(checkpoint), inbox)
    reference = Reference(checkpoint, engine.welcome.vocabulary)
    target = Target(engine, inbox)
    rng = np.random.default_rng(1)
    texts = {1: PROMPT, 2: (*PROMPT[:30], 5, 6, 7), 3: (9,)}
    messages = {}
    proposals: dict[int, tuple[int, ...]] = dict.fromkeys(texts, ())
    for session, tokens in texts.items():
        temperature, top_k, top_p = law
        messages[session] = Open(
            session, 1, tokens, ProposalKind.COUPLED, temperature, session, top_k, top_p, (2,), 200, 4, 6
        )
        target.stream.send(messages[session])
    settle(engine)
    counter = 0
    for _ in range(4):
        blocks = target.newest()
        rows = []
        for session, block in blocks.items():
            assert block.base_len == len(texts[session])
            for branch in block.branches:
                prefix = (*texts[session], *proposals[session][: branch.k], branch.t_star)
                assert list(branch.tokens) == reference.decode(prefix, 4, messages[session])
            branch = block.branches[int(rng.integers(len(block.branches)))]
            new = (*proposals[session][: branch.k], branch.t_star)
            counter += 1
            texts[session], proposals[session] = (*texts[session], *new), branch.tokens
            rows.append(
                CommitRow(
                    session,
                    1,
                    len(texts[session]) - len(new),
                    new,
                    Next.TOKENS if branch.tokens else Next.NONE,
                    4,
                    6,
                    counter,
                    proposal=branch.tokens,
                    proposal_kind=ProposalKind.COUPLED if branch.tokens else ProposalKind.NONE,
                )
            )
        assert set(blocks) == {1, 2, 3}
        target.stream.send(CommitBatch(tuple(rows)))
        settle(engine)
    target.stream.close()
    settle(engine)
    assert_empty(engine)


def assert_empty(engine: DraftEngine) -> None:
    left = engine.snapshot()
    assert (left.sessions, left.rows, left.free_blocks, left.free_tails) == (0, 0, 128, 32)


def wait_for(inbox: Inbox, kind: type, deadline_s: float = 30.0) -> object:
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        received = inbox.receive(max(0.0, end - time.monotonic()))
        if received is not None and isinstance(received[1], kind):
            return received[1]
    raise AssertionError(f"no {kind.__name__} within {deadline_s} s")


def test_thread_calibrates_serves_and_stops(checkpoint: Path) -> None:
    inbox = Inbox()
    engine = load_draft(draft_settings(checkpoint), inbox)
    engine.start()
    try:
        target = Target(engine, inbox)
        welcome = wait_for(target.inbox, Welcome)
        assert welcome.step_time.base_us + welcome.step_time.per_row_us > 0
        target.stream.send(Open(1, 1, PROMPT, ProposalKind.COUPLED, 1.0, 1, 0, 1.0, (), 200, 3, 4))
        assert wait_for(target.inbox, BlockBatch).blocks[0].session == 1
        assert engine.healthy()
        assert engine.n_sessions == 1
    finally:
        assert engine.stop()
    assert not engine.healthy()
    assert target.stream.closed
    assert engine.snapshot().sessions == 0


def test_failed_start_is_said_to_the_caller(checkpoint: Path) -> None:
    engine = load_draft(draft_settings(checkpoint), Inbox())

    def fail(batch: ForwardBatch) -> torch.Tensor:
        raise RuntimeError("no such device")

    engine._runner.forward = fail  # type: ignore[method-assign]
    with pytest.raises(EngineStopped, match="no such device"):
        engine.start()
    with pytest.raises(EngineStopped, match="started before"):
        engine.start()
    assert engine.stop()


def test_failure_ends_the_streams_and_turns_new_ones_away(checkpoint: Path) -> None:
    inbox = Inbox()
    engine = load_draft(draft_settings(checkpoint), inbox)
    engine.start()
    target = Target(engine, inbox)
    wait_for(target.inbox, Welcome)
    broken = threading.Event()

    def fail(batch: ForwardBatch) -> torch.Tensor:
        broken.set()
        raise RuntimeError("out of device memory")

    engine._runner.forward = fail  # type: ignore[method-assign]
    target.stream.send(Open(1, 1, PROMPT, ProposalKind.COUPLED, 1.0, 1, 0, 1.0, (), 200, 3, 4))
    assert broken.wait(30)
    end = time.monotonic() + 30
    while not target.stream.closed and time.monotonic() < end:
        target.inbox.receive(0.05)
    assert target.stream.closed
    assert not engine.healthy()
    late = Target(engine, inbox)
    while not late.stream.closed and time.monotonic() < end:
        late.inbox.receive(0.05)
    assert late.stream.closed
    assert engine.stop()
    assert_empty(engine)
