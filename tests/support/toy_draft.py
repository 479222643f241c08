"""A toy draft model with real bookkeeping, and a scripted target that talks to a draft engine over the in-process link.

The toy "keys and values" are the token ids themselves: a row's logits are a function of the ids that it can really see
through its block table and tail, so a wrong page, a stale entry or a wrong depth changes what is drawn.
"""

from __future__ import annotations

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ssd_cluster.config import DraftSettings, ModelSettings
from ssd_cluster.draft.engine import DraftEngine
from ssd_cluster.draft.sampler import RowSampler, SessionSampling
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    Close,
    CommitBatch,
    CommitRow,
    Hello,
    Load,
    Nack,
    Next,
    Open,
    Opened,
    Welcome,
)
from ssd_cluster.link.stream import Inbox
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.kv import BlockPool, TailPool
from ssd_cluster.sampling.coupled import coupled_sample
from ssd_cluster.sampling.processors import process
from ssd_cluster.types import ProposalKind, fingerprint

VOCABULARY = 61
PADDED = 64
HASH = "toy-tokenizer"


class FakeClock:
    """Seconds that only move when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def toy_logits(context: tuple[int, ...]) -> np.ndarray:
    """The law of the token after ``context``: [PADDED] float32, with large values at the padding ids."""
    seed = zlib.crc32(np.asarray(context, dtype="<i8").tobytes())
    logits = np.random.default_rng(seed).normal(scale=2.0, size=PADDED).astype(np.float32)
    logits[VOCABULARY:] = 50.0
    return logits


class ToyRunner:
    """Runs ForwardBatches on the toy model; every forward takes ``base_s + row_s * tokens`` on the fake clock."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        blocks: int = 64,
        block_size: int = 4,
        tails: int = 64,
        depth: int = 8,
        context: int = 120,
        base_s: float = 0.010,
        row_s: float = 0.0,
    ) -> None:
        self.clock = clock
        self.pool = BlockPool(blocks, block_size)
        self.tails = TailPool(tails, depth, 1, 1, 1, torch.device("cpu"))
        self.pages = np.full(blocks * block_size, -1, dtype=np.int64)
        self.branches = np.full((tails, depth), -1, dtype=np.int64)
        self.block_size = block_size
        self.kernels = None
        self.output_ids = None
        self.device = torch.device("cpu")
        self.max_context = context
        self.model_hash = "toy"
        self.config = SimpleNamespace(vocab_size=PADDED)
        self.base_s, self.row_s = base_s, row_s
        self.batches: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.batches.append(batch)
        self.clock.advance(self.base_s + self.row_s * batch.n_tokens)
        rows: list[np.ndarray] = []
        for span in batch.spans:
            if isinstance(span, CausalSpan):
                self._causal(span, rows)
        for span in batch.spans:
            if isinstance(span, TreeSpan):
                self._tree(span)
        rows = []
        for span in batch.spans:
            rows += self._causal_rows(span) if isinstance(span, CausalSpan) else self._tree_rows(span)
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, PADDED)

    def _slots(self, table: list[int], stop: int) -> list[int]:
        if stop > len(table) * self.block_size:
            raise ValueError(f"{stop} positions do not fit {len(table)} blocks")
        return [table[p // self.block_size] * self.block_size + p % self.block_size for p in range(stop)]

    def _causal(self, span: CausalSpan, rows: list[np.ndarray]) -> None:
        slots = self._slots(span.block_table, span.start + len(span.tokens))
        self.pages[slots[span.start :]] = span.tokens

    def _causal_rows(self, span: CausalSpan) -> list[np.ndarray]:
        seen = self.pages[self._slots(span.block_table, span.start + len(span.tokens))].tolist()
        return [toy_logits(tuple(seen[: span.start + i + 1])) for i in range(span.logits_from, len(span.tokens))]

    def _tree(self, span: TreeSpan) -> None:
        if len(set(span.tails)) != len(span.tails):
            raise ValueError("two rows share a tail slot")
        for token, tail, depth in zip(span.tokens, span.tails, span.depths, strict=True):
            self.branches[tail, depth] = token

    def _tree_rows(self, span: TreeSpan) -> list[np.ndarray]:
        rows = []
        for visible, tail, depth in zip(span.visible, span.tails, span.depths, strict=True):
            prefix = self.pages[self._slots(span.block_table, visible)].tolist()
            rows.append(toy_logits((*prefix, *self.branches[tail, : depth + 1].tolist())))
        return rows


def sequential(tokens: tuple[int, ...], n: int, sampling: SessionSampling, stop_ids: tuple[int, ...] = ()) -> list[int]:
    """Plain decoding of the toy model: the next ``n`` tokens after ``tokens``, ended by a stop id."""
    drawn: list[int] = []
    while len(drawn) < n and not (drawn and drawn[-1] in stop_ids):
        context = (*tokens, *drawn)
        logits = torch.from_numpy(toy_logits(context)[:VOCABULARY])[None]
        probs = process(logits, [sampling.params])
        noise = sampling.noise.row(len(context)) if sampling.noise is not None else None
        drawn.append(int(coupled_sample(probs, [noise])[0]))
    return drawn


def settings(**changes: Any) -> DraftSettings:
    """Draft settings for tests."""
    return DraftSettings(**({"model": ModelSettings(path="toy"), "k_max": 8} | changes))


class Rig:
    """A draft engine on the toy model, a fake clock, and any number of scripted targets."""

    def __init__(self, runner: Any = None, clock: FakeClock | None = None, **changes: Any) -> None:
        self.clock = clock or (runner.clock if runner is not None else FakeClock())
        self.runner = runner if runner is not None else ToyRunner(self.clock)
        self.inbox = Inbox(self.clock)
        self.engine = DraftEngine(
            self.runner,
            settings(**changes),
            self.inbox,
            tokenizer_hash=HASH,
            vocabulary=VOCABULARY,
            clock=self.clock,
        )
        self.free_blocks = self.runner.pool.n_free
        self.free_tails = self.runner.tails.n_free

    def target(self, target_id: str = "target", *, hello: bool = True) -> ScriptedTarget:
        return ScriptedTarget(self, target_id, hello)

    def settle(self, limit: int = 500) -> int:
        """Step until there is nothing to do; returns the number of steps that did something."""
        for steps in range(limit):
            if not self.engine.step():
                return steps
        raise AssertionError(f"the draft is still busy after {limit} steps")

    def leaks(self) -> tuple[int, int]:
        """Blocks and tail slots that are missing."""
        return self.free_blocks - self.runner.pool.n_free, self.free_tails - self.runner.tails.n_free

    def reference(self, message: Open) -> SessionSampling:
        """Sampling state equal to the draft's for a session."""
        return RowSampler(VOCABULARY, PADDED, None, torch.device("cpu"), 64).session(message)

    def count(self, name: str, **labels: str) -> float:
        """A metric's value; 0 if it was never touched."""
        return self.engine.metrics.registry.get_sample_value(name, labels) or 0.0


class ScriptedTarget:
    """The target's end of one stream."""

    def __init__(self, rig: Rig, target_id: str, hello: bool) -> None:
        self.inbox = Inbox()
        self.stream, self.draft_end = pair(self.inbox, rig.inbox, codec=True)
        self.counter = 0
        self.received: list[Any] = []
        if hello:
            self.stream.send(Hello(target_id, 1, HASH, VOCABULARY))

    def open(self, session: int = 1, tokens: tuple[int, ...] = (3, 4, 5), **changes: Any) -> Open:
        message = Open(
            **(
                {
                    "session": session,
                    "epoch": 1,
                    "tokens": tokens,
                    "kind": ProposalKind.COUPLED,
                    "temperature": 1.0,
                    "seed": 7,
                    "top_k": 0,
                    "top_p": 1.0,
                    "stop_ids": (),
                    "max_len": 100,
                    "k": 3,
                    "rows": 6,
                }
                | changes
            )
        )
        self.stream.send(message)
        return message

    def row(self, from_len: int, tokens: tuple[int, ...] = (), session: int = 1, **changes: Any) -> CommitRow:
        self.counter += 1
        proposal = changes.get("proposal", ())
        base = {
            "session": session,
            "epoch": 1,
            "from_len": from_len,
            "tokens": tokens,
            "next": Next.TOKENS if proposal else Next.NONE,
            "k": 3,
            "rows": 6,
            "counter": self.counter,
            "proposal_kind": ProposalKind.COUPLED if proposal else ProposalKind.NONE,
        }
        return CommitRow(**(base | changes))

    def commit(self, *args: Any, **changes: Any) -> CommitRow:
        row = self.row(*args, **changes)
        self.stream.send(CommitBatch((row,)))
        return row

    def close(self, *sessions: int) -> None:
        self.stream.send(Close(sessions))

    def take(self) -> list[Any]:
        """Messages since the last call."""
        new = [message for _, message in self.inbox.drain()]
        self.received += new
        return new

    def blocks(self) -> list[Block]:
        return [block for m in self.take() if isinstance(m, BlockBatch) for block in m.blocks]

    def of(self, kind: type) -> list[Any]:
        """Messages of one type since the last ``take``."""
        return [m for m in self.take() if isinstance(m, kind)]


__all__ = [
    "HASH",
    "PADDED",
    "VOCABULARY",
    "FakeClock",
    "Load",
    "Nack",
    "Opened",
    "Rig",
    "ScriptedTarget",
    "ToyRunner",
    "Welcome",
    "fingerprint",
    "sequential",
    "settings",
    "toy_logits",
]
