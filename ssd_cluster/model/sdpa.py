"""The ``sdpa`` attention backend: torch's own kernels, one call per sequence, CPU and CUDA; the reference for others.

Causal spans read their pages as a view where the block table is one ascending run, else as a gathered copy. Tree rows
use a cascade: one dense attention of all rows of a session over the shared pages, one over each row's own tail, merged
by log-sum-exp (speculation.md section 7).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_cluster.model.attention import AttentionBackend, AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan

FOLD_ROWS = 32


class SdpaAttention(AttentionBackend):
    """See the module's docstring."""

    def plan(self, batch: ForwardBatch) -> SdpaPlan:
        return SdpaPlan(self, batch)

    def slots(self, table: list[int], start: int, stop: int) -> range | Tensor:
        """Places of positions [start, stop) in the cache: a range if they are one ascending run, else [stop - start].

        Raises:
            ValueError: the table is too short.
        """
        size = self.kv.block_size
        first, last = start // size, -(-stop // size)
        if last > len(table):
            raise ValueError(f"{stop} positions do not fit a block table of {len(table)} blocks")
        blocks = table[first:last]
        if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
            offset = (blocks[0] - first) * size
            return range(start + offset, stop + offset)
        places = torch.tensor(blocks)[:, None] * size + torch.arange(size)
        return places.flatten()[start - first * size : stop - first * size].to(self.kv.data.device)


class _Pages:
    """Keys and values of positions [0, length) of one sequence, layer by layer."""

    def __init__(self, backend: SdpaAttention, table: list[int], length: int) -> None:
        slots = backend.slots(table, 0, length)
        self._data = backend.kv.data
        self._views: list[tuple[Tensor, Tensor]] = []
        if isinstance(slots, range):
            run = self._data[:, slots.start : slots.stop].permute(2, 0, 3, 1, 4).unsqueeze(2)
            self._views = list(zip(run[0].unbind(0), run[1].unbind(0), strict=True))
        else:
            self._slots = slots

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of a layer, each [1, G, L, D]."""
        if self._views:
            return self._views[layer]
        gathered = self._data[layer].index_select(0, self._slots)
        keys, values = gathered.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        return keys, values


@dataclass(slots=True)
class _Causal:
    """A causal span: rows [first, stop) of the forward; ``mask`` is None where every row sees all pages."""

    first: int
    stop: int
    pages: _Pages
    mask: Tensor | None
    fold: bool
    whole: bool


@dataclass(slots=True)
class _Branches:
    """The rows of one tree span: rows [first, stop) among the tree rows of the forward."""

    first: int
    stop: int
    pages: _Pages
    mask: Tensor | None


class SdpaPlan(AttentionPlan):
    """One forward of the ``sdpa`` backend."""

    def __init__(self, backend: SdpaAttention, batch: ForwardBatch) -> None:
        self._backend = backend
        config = backend.config
        self._G, self._group, self._D = config.n_kv_heads, config.group, config.head_dim
        self._device, self._dtype = backend.kv.data.device, backend.kv.data.dtype
        self._causal: list[_Causal] = []
        self._branches: list[_Branches] = []
        page_slots: list[range | Tensor] = []
        page_rows: list[range] = []
        tree_rows: list[range] = []
        first = 0
        for span in batch.spans:
            stop = first + len(span.tokens)
            if isinstance(span, CausalSpan):
                page_rows.append(range(first, stop))
                page_slots.append(backend.slots(span.block_table, span.start, span.start + len(span.tokens)))
                self._causal.append(self._plan_causal(span, first, stop))
            else:
                tree_rows.append(range(first, stop))
                self._plan_tree(span)
            first = stop
        self._n_rows = first
        self._page_slots = _join(page_slots, self._device)
        self._page_rows = _rows(page_rows, first, self._device)
        self._tree_rows = _rows(tree_rows, first, self._device)
        self._plan_tails([span for span in batch.spans if isinstance(span, TreeSpan)])

    def _plan_causal(self, span: CausalSpan, first: int, stop: int) -> _Causal:
        n, length = stop - first, span.start + stop - first
        fold = 1 < n <= FOLD_ROWS and self._group > 1
        mask = None
        if fold or (n > 1 and span.start > 0):
            mask = torch.zeros((self._group if fold else 1, n, length), dtype=self._dtype, device=self._device)
            future = torch.full((n, n), float("-inf"), dtype=self._dtype, device=self._device)
            mask[:, :, span.start :] = future.triu(1)
            mask = mask.view(-1, length)
        pages = _Pages(self._backend, span.block_table, length)
        return _Causal(first, stop, pages, mask, fold, whole=n > 1 and mask is None)

    def _plan_tree(self, span: TreeSpan) -> None:
        length = max(span.visible)
        if min(span.visible) < 1:
            raise ValueError("a tree row must see at least one position of its session's pages")
        mask = None
        if min(span.visible) < length:
            visible = torch.tensor(span.visible, device=self._device).repeat(self._group)
            hidden = torch.arange(length, device=self._device) >= visible[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=self._device)
            mask.masked_fill_(hidden, float("-inf"))
        first = self._branches[-1].stop if self._branches else 0
        pages = _Pages(self._backend, span.block_table, length)
        self._branches.append(_Branches(first, first + len(span.tokens), pages, mask))

    def _plan_tails(self, spans: list[TreeSpan]) -> None:
        if not spans:
            return
        pool = self._backend.tails
        if pool is None:
            raise ValueError("tree rows need tails; the model was loaded without any")
        tails = list(itertools.chain.from_iterable(span.tails for span in spans))
        depths = list(itertools.chain.from_iterable(span.depths for span in spans))
        deepest = max(depths)
        if deepest >= pool.depth:
            raise ValueError(f"tail entry {deepest} does not fit tails of {pool.depth} tokens")
        self._tails = torch.tensor(tails, device=self._device)
        self._tail_slots = self._tails * pool.depth + torch.tensor(depths, device=self._device)
        self._tail_layers = pool.data.flatten(1, 2).unbind(0)
        self._tail_views = pool.data[:, :, : deepest + 1].unbind(0)
        self._tail_mask = None
        if min(depths) < deepest:
            hidden = torch.arange(deepest + 1, device=self._device) > torch.tensor(depths, device=self._device)[:, None]
            mask = torch.zeros(hidden.shape, device=self._device).masked_fill_(hidden, float("-inf"))
            self._tail_mask = mask[:, None, None, :]

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        if not self._branches:
            self._write(layer, kv)
            if len(self._causal) == 1:
                return self._attend_causal(layer, q, self._causal[0]).reshape(self._n_rows, -1)
            out = q.new_empty(q.shape)
        else:
            out = q.new_empty(q.shape)
            if self._causal:
                self._write(layer, kv.index_select(0, self._page_rows))
            rows = self._tree_rows
            only_tree = not self._causal
            tree_q = q if only_tree else q.index_select(0, rows)
            tree_kv = kv if only_tree else kv.index_select(0, rows)
            merged = self._attend_tree(layer, tree_q, tree_kv)
            if only_tree:
                return merged.reshape(self._n_rows, -1)
            out.index_copy_(0, rows, merged)
        for span in self._causal:
            out[span.first : span.stop] = self._attend_causal(layer, q[span.first : span.stop], span)
        return out.flatten(1)

    def _write(self, layer: int, kv: Tensor) -> None:
        data = self._backend.kv.data[layer]
        if isinstance(self._page_slots, range):
            data[self._page_slots.start : self._page_slots.stop] = kv
        else:
            data.index_copy_(0, self._page_slots, kv)

    def _attend_causal(self, layer: int, q: Tensor, span: _Causal) -> Tensor:
        """[n, H, D] from [n, H, D]."""
        keys, values = span.pages.of(layer)
        n = q.shape[0]
        if span.fold:  # queries of one key head side by side: one product instead of one per query head
            folded = q.view(n, self._G, self._group, self._D).permute(1, 2, 0, 3).reshape(1, self._G, -1, self._D)
            out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=span.mask)
            return out.view(self._G, self._group, n, self._D).permute(2, 0, 1, 3).reshape(n, -1, self._D)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            attn_mask=span.mask,
            is_causal=span.whole,
            enable_gqa=self._group > 1,
        )
        return out.squeeze(0).transpose(0, 1)

    def _attend_tree(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        """[R, H, D] from [R, H, D]; keys and values go to the tails."""
        self._tail_layers[layer].index_copy_(0, self._tail_slots, kv.float())
        grouped = q.view(-1, self._G, self._group, self._D)
        parts = [self._attend_prefix(layer, grouped[span.first : span.stop], span) for span in self._branches]
        prefix, prefix_lse = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))
        tails = self._tail_views[layer].index_select(0, self._tails)
        keys, values = tails.permute(2, 0, 3, 1, 4).unbind(0)
        own, own_lse = attend_lse(grouped.float(), keys, values, self._tail_mask)
        merged = torch.lerp(prefix.float(), own, torch.sigmoid(own_lse - prefix_lse).unsqueeze(-1))
        return merged.flatten(1, 2).to(q.dtype)

    def _attend_prefix(self, layer: int, q: Tensor, span: _Branches) -> tuple[Tensor, Tensor]:
        """([R, G, H / G, D], [R, G, H / G]) over the shared pages."""
        keys, values = span.pages.of(layer)
        R = q.shape[0]
        folded = q.permute(1, 2, 0, 3).reshape(1, self._G, -1, self._D)
        out, lse = attend_lse(folded, keys, values, span.mask)
        shape = (self._G, self._group, R)
        return out.view(*shape, self._D).permute(2, 0, 1, 3), lse.view(shape).permute(2, 0, 1)


def attend_lse(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention and the log-sum-exp of its scores, so that parts can be merged.

    Args:
        q: [B, G, M, D]; keys, values: [B, G, L, D] of the same dtype.
        mask: added to the scores, broadcast to [B, G, M, L], or None.

    Returns:
        ([B, G, M, D] in q's dtype, [B, G, M] float32).
    """
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(q, keys, values, attn_mask=mask)
        return out, lse
    return attend_lse_dense(q, keys, values, mask)


def attend_lse_dense(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """``attend_lse`` written out, in float32; any device."""
    scores = q.float() @ keys.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(-1)
    return ((scores - lse.unsqueeze(-1)).exp() @ values.float()).to(q.dtype), lse


def _join(slots: list[range | Tensor], device: torch.device) -> range | Tensor:
    """All slots of a forward: still a range if there is one span, else [n] int64."""
    if len(slots) == 1:
        return slots[0]
    parts = [torch.arange(part.start, part.stop) if isinstance(part, range) else part.cpu() for part in slots]
    return torch.cat(parts).to(device) if parts else range(0)


def _rows(rows: list[range], total: int, device: torch.device) -> Tensor:
    """Row indices [n] int64 of some spans of a forward."""
    flat = list(itertools.chain.from_iterable(rows)) if sum(map(len, rows)) < total else list(range(total))
    return torch.tensor(flat, dtype=torch.int64, device=device)
