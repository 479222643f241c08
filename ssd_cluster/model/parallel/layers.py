"""The layers that ranks share: what each computes of them, and the exchange that follows.

Column-parallel layers (qkv, gate_up) need nothing: a rank holds some of their outputs and goes on with these.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_cluster.model.linear import Linear
from ssd_cluster.model.parallel.group import Group
from ssd_cluster.model.parallel.sharding import Shard
from ssd_cluster.model.weights import Embedding, Layout


class RowParallel(Linear):
    """A linear layer of which each rank holds some inputs; the ranks' results are added up in float32."""

    def __init__(self, part: Linear, group: Group) -> None:
        self._part = part
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        y = self._part(x).float().contiguous()
        self._group.all_reduce(y)
        return y


class VocabularyEmbedding(Embedding):
    """The embedding, of which each rank holds the rows of some ids."""

    def __init__(self, table: Tensor, shard: Shard, group: Group) -> None:
        super().__init__(table)
        self._first = shard.vocabulary.start
        self._group = group

    def __call__(self, tokens: Tensor) -> Tensor:
        own = tokens - self._first
        elsewhere = (own < 0) | (own >= len(self.table))
        rows = F.embedding(own.masked_fill(elsewhere, 0), self.table).float()
        rows.masked_fill_(elsewhere.unsqueeze(1), 0.0)
        self._group.all_reduce(rows)
        return rows


class VocabularyHead(Linear):
    """The head, of which each rank holds some columns. Rank 0 gets the logits [T, V], the others none: [T, 0]."""

    def __init__(self, part: Linear, shard: Shard, group: Group) -> None:
        self._part = part
        self._missing = shard.columns - len(shard.vocabulary)
        self._size = shard.whole.vocab_size
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        logits = self._part.unrounded(x)
        parts = self._group.gather(F.pad(logits, (0, self._missing)).contiguous())
        return torch.cat(parts, dim=1)[:, : self._size] if parts else logits[:, :0]


class RankLayout(Layout):
    """One rank's part of a model, and the group that completes it."""

    def __init__(self, shard: Shard, group: Group) -> None:
        self.shard = shard
        self.group = group

    @property
    def vocabulary(self) -> int:
        return len(self.shard.vocabulary)

    def embedding(self, table: Tensor) -> Embedding:
        return VocabularyEmbedding(table, self.shard, self.group)

    def row(self, part: Linear) -> Linear:
        return RowParallel(part, self.group)

    def head(self, part: Linear) -> Linear:
        return VocabularyHead(part, self.shard, self.group)
