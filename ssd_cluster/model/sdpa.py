"""The ``sdpa`` attention backend: torch's own kernels, on CPU and CUDA; the reference for others.

Tree rows use a cascade: one dense attention of all rows of a session over the shared pages, one over each row's own
tail, merged by log-sum-exp (speculation.md section 7).
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ssd_cluster.model.attention import AttentionBackend, AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.kv import TailPool
from ssd_cluster.model.paged import PagedAttention, PagedRows, as_tensor, page_slots
from ssd_cluster.model.partial import attend_lse, hiding_mask, merge


class SdpaAttention(AttentionBackend):
    """See the module's docstring."""

    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        causal = [span for span in batch.spans if isinstance(span, CausalSpan) and span.tokens]
        trees = [span for span in batch.spans if isinstance(span, TreeSpan) and span.tokens]
        if not trees:
            return CausalPlan(self, causal)
        if not causal:
            return TreePlan(self, trees)
        return MixedPlan(self, batch, causal, trees)


class CausalPlan(AttentionPlan):
    """Causal spans: keys and values go to the pages, each row sees the pages up to itself."""

    def __init__(self, backend: SdpaAttention, spans: list[CausalSpan]) -> None:
        kv = backend.kv
        slots = [
            page_slots(span.block_table, span.start, span.start + len(span.tokens), kv.block_size) for span in spans
        ]
        self._slots = slots[0] if len(slots) == 1 else torch.cat([as_tensor(part) for part in slots])
        if isinstance(self._slots, Tensor):
            self._slots = self._slots.to(kv.data.device)
        self._data = kv.data
        rows = [PagedRows(span.block_table, range(span.start + 1, span.start + len(span.tokens) + 1)) for span in spans]
        self._paged = PagedAttention(backend.config, kv, rows, need_lse=False)

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        if isinstance(self._slots, range):
            self._data[layer, self._slots.start : self._slots.stop] = kv
        else:
            self._data[layer].index_copy_(0, self._slots, kv)
        out, _ = self._paged.attend(layer, q)
        return out.reshape(len(q), -1)


class TreePlan(AttentionPlan):
    """Tree spans: keys and values go to the tails, each row sees a prefix of its session's pages and its own tail."""

    def __init__(self, backend: SdpaAttention, spans: list[TreeSpan]) -> None:
        pool = backend.tails
        if pool is None:
            raise ValueError("tree rows need tails; the model was loaded without any")
        if min(min(span.visible) for span in spans) < 1:
            raise ValueError("a tree row must see at least one position of its session's pages")
        self._group = backend.config.group
        rows = [PagedRows(span.block_table, span.visible) for span in spans]
        self._paged = PagedAttention(backend.config, backend.kv, rows, need_lse=True)
        self._plan_tails(pool, spans)

    def _plan_tails(self, pool: TailPool, spans: list[TreeSpan]) -> None:
        tails = list(itertools.chain.from_iterable(span.tails for span in spans))
        depths = list(itertools.chain.from_iterable(span.depths for span in spans))
        deepest = max(depths)
        if deepest >= pool.depth:
            raise ValueError(f"tail entry {deepest} does not fit tails of {pool.depth} tokens")
        device = pool.data.device
        entries = torch.tensor(depths, device=device)
        self._tails = torch.tensor(tails, device=device)
        self._slots = self._tails * pool.depth + entries
        self._entries_of = pool.data.flatten(1, 2).unbind(0)
        self._tails_of = pool.data[:, :, : deepest + 1].unbind(0)
        self._mask: Tensor | None = None
        if min(depths) < deepest:
            self._mask = hiding_mask(entries + 1, deepest + 1, pool.data.dtype)[:, None, None, :]

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        self._entries_of[layer].index_copy_(0, self._slots, kv.float())
        prefix, prefix_lse = self._paged.attend(layer, q)
        if prefix_lse is None:
            raise RuntimeError("paged attention was planned without log-sum-exps")
        keys, values = self._tails_of[layer].index_select(0, self._tails).permute(2, 0, 3, 1, 4).unbind(0)
        grouped = q.float().view(len(q), -1, self._group, q.shape[-1])
        own, own_lse = attend_lse(grouped, keys, values, self._mask)
        return merge(prefix.float(), prefix_lse, own.flatten(1, 2), own_lse.flatten(1, 2)).flatten(1).to(q.dtype)


class MixedPlan(AttentionPlan):
    """Causal and tree spans in one forward."""

    def __init__(
        self, backend: SdpaAttention, batch: ForwardBatch, causal: list[CausalSpan], trees: list[TreeSpan]
    ) -> None:
        self._causal = CausalPlan(backend, causal)
        self._tree = TreePlan(backend, trees)
        is_tree = [isinstance(span, TreeSpan) for span in batch.spans for _ in span.tokens]
        mask = torch.tensor(is_tree, device=backend.kv.data.device)
        self._tree_rows = mask.nonzero().flatten()
        self._causal_rows = (~mask).nonzero().flatten()

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        out = q.new_empty((len(q), q.shape[1] * q.shape[2]))
        for plan, rows in ((self._causal, self._causal_rows), (self._tree, self._tree_rows)):
            out.index_copy_(0, rows, plan.attend(layer, q.index_select(0, rows), kv.index_select(0, rows)))
        return out
