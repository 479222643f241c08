"""The messages of one round: a commit of every sequence, and what a draft answers."""

from __future__ import annotations

from enum import StrEnum

import torch
from pydantic import Field, model_validator

from ssd_cluster.config import Settings
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    Branch,
    CommitBatch,
    CommitRow,
    Hello,
    Next,
    StepTimeModel,
    Welcome,
)
from ssd_cluster.link.tensor.rows import LawRows
from ssd_cluster.types import BlockOrigin, ProposalKind, fingerprint

_SESSION = 0x5D00_0000_0000_0001
_BASE = 300


class Payload(StrEnum):
    """What comes back: blocks alone, or with the laws of the proposals."""

    BLOCKS = "blocks"
    SPARSE = "sparse"
    DENSE = "dense"


class Shape(Settings):
    """Sizes of a round.

    ``batch``: sequences in one commit. ``k``: tokens per proposal and branch. ``rows``: branches per block.
    ``vocabulary``: entries of a dense law's row; ``top_m``: of a sparse one's.
    """

    payload: Payload
    batch: int = Field(ge=1)
    k: int = Field(ge=1)
    rows: int = Field(ge=1)
    vocabulary: int = Field(ge=2)
    top_m: int = Field(ge=1)

    @model_validator(mode="after")
    def _law_fits(self) -> Shape:
        if self.top_m > self.vocabulary:
            raise ValueError(f"top_m ({self.top_m}) must not exceed the vocabulary ({self.vocabulary})")
        return self

    @property
    def kind(self) -> ProposalKind:
        """Of the proposals."""
        return ProposalKind.COUPLED if self.payload is Payload.BLOCKS else ProposalKind(self.payload.value)

    @property
    def width(self) -> int:
        """Entries of a row of a law."""
        return self.vocabulary if self.payload is Payload.DENSE else self.top_m

    def hello(self) -> Hello:
        return Hello(
            "bench", 1, "bench", self.vocabulary, tuple({ProposalKind.COUPLED, self.kind}), trust_domain="bench"
        )

    def welcome(self) -> Welcome:
        numbers = {"row_credit": self.batch * self.rows, "session_credit": self.batch, "max_context": 4096}
        return Welcome("bench", 1, "bench", "bench", self.vocabulary, self.k, step_time=StepTimeModel(0.0, 0.0),
                       session_ttl_s=10.0, trust_domain="bench", **numbers)  # fmt: skip

    def commit(self) -> CommitBatch:
        """One frame for the whole batch; half of a proposal was kept."""
        tokens, proposal = self._tokens(self.k // 2 + 1), self._tokens(self.k)
        return CommitBatch(
            tuple(
                CommitRow(
                    session=_SESSION + n,
                    epoch=1,
                    from_len=_BASE,
                    tokens=tokens,
                    next=Next.TOKENS,
                    k=self.k,
                    rows=self.rows,
                    counter=1,
                    due_us=20_000,
                    proposal=proposal,
                    proposal_kind=self.kind,
                    origin=BlockOrigin(1, 0, 0),
                )
                for n in range(self.batch)
            )
        )

    def blocks(self) -> BlockBatch:
        """What a draft pushes for it."""
        branches = tuple(
            Branch(i % (self.k + 1), i % self.vocabulary, self._tokens(self.k), -0.1 * i) for i in range(self.rows)
        )
        name = fingerprint(_BASE, self._tokens(self.k))
        return BlockBatch(tuple(Block(_SESSION + n, 1, 1, _BASE, name, branches) for n in range(self.batch)))

    def laws(self) -> list[LawRows]:
        """One per sequence; none for blocks alone."""
        if self.payload is Payload.BLOCKS:
            return []
        row = torch.full((self.width,), 1.0 / self.width)
        ids = (torch.arange(self.width),) * self.k if self.payload is Payload.SPARSE else ()
        name = fingerprint(_BASE, self._tokens(self.k))
        return [LawRows(_SESSION + n, 1, name, (row,) * self.k, self.vocabulary, ids) for n in range(self.batch)]

    def _tokens(self, n: int) -> tuple[int, ...]:
        return tuple((7919 * i + 1) % self.vocabulary for i in range(n))
