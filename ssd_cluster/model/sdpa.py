"""The ``sdpa`` attention backend: torch's own kernels, on CPU and CUDA; the reference for others.

Tree rows use a cascade: one dense attention of all rows of a session over the shared pages, one over each row's own
tail, merged by log-sum-exp (speculation.md section 7). Spans with an ancestor mask run densely, for the benchmark.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_cluster.model.attention import AttentionBackend, AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan, TreeSpan
from ssd_cluster.model.paged import PagedAttention, PagedRows, as_tensor, page_slots
from ssd_cluster.model.partial import attend_lse, merge
from ssd_cluster.model.plan_parts import PageWrites, TailRows, plan_spans


class SdpaAttention(AttentionBackend):
    """See the module's docstring."""

    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        if len(batch.spans) == 1 and isinstance(batch.spans[0], MaskedSpan):
            return MaskedPlan(self, batch.spans[0])
        return plan_spans(
            batch, self.kv.data.device, lambda spans: CausalPlan(self, spans), lambda spans: TreePlan(self, spans)
        )


class CausalPlan(AttentionPlan):
    """Causal spans: keys and values go to the pages, each row sees the pages up to itself."""

    def __init__(self, backend: SdpaAttention, spans: list[CausalSpan]) -> None:
        self._writes = PageWrites(backend.kv, spans)
        rows = [PagedRows(span.block_table, range(span.start + 1, span.start + len(span.tokens) + 1)) for span in spans]
        self._paged = PagedAttention(backend.config, backend.kv, rows, need_lse=False)

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        self._writes.write(layer, kv)
        out, _ = self._paged.attend(layer, q)
        return out.reshape(len(q), -1)


class TreePlan(AttentionPlan):
    """Tree spans: keys and values go to the tails, each row sees a prefix of its session's pages and its own tail."""

    def __init__(self, backend: SdpaAttention, spans: list[TreeSpan]) -> None:
        self._tails = TailRows(backend.tails, spans)
        self._group = backend.config.group
        rows = [PagedRows(span.block_table, span.visible) for span in spans]
        self._paged = PagedAttention(backend.config, backend.kv, rows, need_lse=True)
        self._mask = None if self._tails.mask is None else self._tails.mask[:, None, None, :]

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        self._tails.write(layer, kv)
        prefix, prefix_lse = self._paged.attend(layer, q)
        if prefix_lse is None:
            raise RuntimeError("paged attention was planned without log-sum-exps")
        keys, values = self._tails.read(layer).permute(2, 0, 3, 1, 4).unbind(0)
        grouped = q.float().view(len(q), -1, self._group, q.shape[-1])
        own, own_lse = attend_lse(grouped, keys, values, self._mask)
        return merge(prefix.float(), prefix_lse, own.flatten(1, 2), own_lse.flatten(1, 2)).flatten(1).to(q.dtype)


class MaskedPlan(AttentionPlan):
    """One masked span: nodes written one after the other behind the sequence, one dense attention with their mask."""

    def __init__(self, backend: SdpaAttention, span: MaskedSpan) -> None:
        self._data = backend.kv.data
        self._gqa = backend.config.group > 1
        size, device = backend.kv.block_size, self._data.device
        stop = span.start + len(span.parents)
        self._read = as_tensor(page_slots(span.block_table, 0, stop, size)).to(device)
        self._write = self._read[span.start + span.first :]
        self._mask = ancestor_mask(span).to(device, self._data.dtype)

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        self._data[layer].index_copy_(0, self._write, kv)
        keys, values = self._data[layer].index_select(0, self._read).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        heads = q.transpose(0, 1).unsqueeze(0)
        out = F.scaled_dot_product_attention(heads, keys, values, self._mask, enable_gqa=self._gqa)
        return out.squeeze(0).transpose(0, 1).reshape(len(q), -1)


def ancestor_mask(span: MaskedSpan) -> Tensor:
    """[n, start + nodes]: 0 where a node that is run sees a place (the sequence, ancestors, itself), -inf elsewhere."""
    nodes = len(span.parents)
    sees = torch.zeros(nodes, nodes, dtype=torch.bool)
    for node, parent in enumerate(span.parents):
        if parent >= 0:
            sees[node] = sees[parent]
        sees[node, node] = True
    hidden = torch.cat([torch.zeros(nodes, span.start, dtype=torch.bool), ~sees], dim=1)[span.first :]
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
