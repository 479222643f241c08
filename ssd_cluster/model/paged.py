"""Attention of query rows over paged keys and values, where every row sees a prefix of its sequence's pages."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.kv import PagedKV
from ssd_cluster.model.partial import attend_lse, hiding_mask

FOLD_ROWS = 32
"""Up to here the query heads of one key head are run as rows of one product; beyond, the copy costs more than it saves
(measured on one Sapphire Rapids core: 6 rows over 512 positions 87 us folded, 145 us not; 64 rows 378 and 362)."""

GATHER_BYTES = 128 * 1024
"""Keys and values per sequence and layer up to which sequences of several rows are copied together and run in one call
(same machine, 30 layers, 16 sequences of 6 rows over 90 KB: 67 ms apart, 48 ms together; single rows gain nothing)."""


@dataclass(frozen=True, slots=True)
class PagedRows:
    """Query rows of one sequence; row i sees positions [0, visible[i]) of the pages in ``table``."""

    table: list[int]
    visible: Sequence[int]

    @property
    def length(self) -> int:
        return max(self.visible)


def page_slots(table: list[int], start: int, stop: int, block_size: int) -> range | Tensor:
    """Places of positions [start, stop) in the cache: a range if they are one ascending run, else [stop - start] int64.

    Raises:
        ValueError: the table is too short.
    """
    check_table(table, stop, block_size)
    first, last = start // block_size, -(-stop // block_size)
    blocks = table[first:last]
    if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
        offset = (blocks[0] - first) * block_size
        return range(start + offset, stop + offset)
    places = torch.tensor(blocks)[:, None] * block_size + torch.arange(block_size)
    return places.flatten()[start - first * block_size : stop - first * block_size]


def check_table(table: list[int], stop: int, block_size: int) -> None:
    """Refuse a block table that does not cover positions [0, stop).

    Raises:
        ValueError: it is too short.
    """
    if stop > len(table) * block_size:
        raise ValueError(f"{stop} positions do not fit a block table of {len(table)} blocks")


def as_tensor(slots: range | Tensor) -> Tensor:
    """Slots as [n] int64."""
    return torch.arange(slots.start, slots.stop) if isinstance(slots, range) else slots


class PagedAttention:
    """Attention of one forward's rows, sequence after sequence; ``need_lse``: also return log-sum-exps."""

    def __init__(self, config: DecoderConfig, kv: PagedKV, sequences: list[PagedRows], need_lse: bool) -> None:
        position_bytes = 2 * config.n_kv_heads * config.head_dim * kv.data.element_size()
        small = [
            1 < len(rows.visible) <= FOLD_ROWS and rows.length * position_bytes <= GATHER_BYTES for rows in sequences
        ]
        together = sum(small) > 1
        starts = list(itertools.accumulate((len(rows.visible) for rows in sequences), initial=0))
        self._parts: list[tuple[_Part, int, int]] = []
        order: list[int] = []
        if together:
            chosen = [index for index, fits in enumerate(small) if fits]
            order += itertools.chain.from_iterable(range(starts[index], starts[index + 1]) for index in chosen)
            self._rows = torch.tensor(order, device=kv.data.device)
            self._parts.append((_Padded(config, kv, [sequences[index] for index in chosen]), 0, 0))
        for index, rows in enumerate(sequences):
            if not (together and small[index]):
                order += range(starts[index], starts[index + 1])
                self._parts.append((_Single(config, kv, rows, need_lse), starts[index], starts[index + 1]))
        self._whole = len(self._parts) == 1
        self._restore: Tensor | None = None
        if order != list(range(len(order))):
            self._restore = torch.tensor(order, device=kv.data.device).argsort()
        self._need_lse = need_lse

    def attend(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor | None]:
        """([N, H, D], [N, H] float32 or None) of q [N, H, D]."""
        if self._whole:
            return self._parts[0][0].attend(layer, q)
        done = [
            part.attend(layer, q[start:stop] if stop else q.index_select(0, self._rows))
            for part, start, stop in self._parts
        ]
        out = torch.cat([part for part, _ in done])
        lse = torch.cat([part for _, part in done if part is not None]) if self._need_lse else None
        if self._restore is None:
            return out, lse
        return out.index_select(0, self._restore), None if lse is None else lse.index_select(0, self._restore)


class _Part(ABC):
    """Rows that run in one kernel call."""

    @abstractmethod
    def attend(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor | None]:
        """([n, H, D], [n, H] or None) of q [n, H, D]."""


class _Single(_Part):
    """One sequence, its pages read as a view if they are one ascending run, else as a gathered copy."""

    def __init__(self, config: DecoderConfig, kv: PagedKV, rows: PagedRows, need_lse: bool) -> None:
        n, length = len(rows.visible), rows.length
        self._G, self._group, self._D = config.n_kv_heads, config.group, config.head_dim
        self._need_lse = need_lse
        self._fold = need_lse or (1 < n <= FOLD_ROWS and self._group > 1)
        square = not self._fold and n > 1 and list(rows.visible) == list(range(1, n + 1))
        self._causal = square
        self._mask: Tensor | None = None
        if min(rows.visible) < length and not square:
            mask = hiding_mask(torch.tensor(rows.visible, device=kv.data.device), length, kv.data.dtype)
            self._mask = mask.repeat(self._group, 1) if self._fold else mask
        self._data = kv.data
        self._views: list[tuple[Tensor, Tensor]] = []
        slots = page_slots(rows.table, 0, length, kv.block_size)
        if isinstance(slots, range):
            run = kv.data[:, slots.start : slots.stop].permute(2, 0, 3, 1, 4).unsqueeze(2)
            self._views = list(zip(run[0].unbind(0), run[1].unbind(0), strict=True))
        else:
            self._slots = slots.to(kv.data.device)

    def _pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of a layer, each [1, G, L, D]."""
        if self._views:
            return self._views[layer]
        keys, values = self._data[layer].index_select(0, self._slots).permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        return keys, values

    def attend(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor | None]:
        keys, values = self._pages(layer)
        if not self._fold:
            heads = q.transpose(0, 1).unsqueeze(0)
            out = F.scaled_dot_product_attention(
                heads, keys, values, self._mask, is_causal=self._causal, enable_gqa=self._group > 1
            )
            return out.squeeze(0).transpose(0, 1), None
        n = q.shape[0]
        folded = q.view(n, self._G, self._group, self._D).permute(1, 2, 0, 3).reshape(1, self._G, -1, self._D)
        lse = None
        if self._need_lse:
            out, lse = attend_lse(folded, keys, values, self._mask)
            lse = lse.view(self._G, self._group, n).permute(2, 0, 1).reshape(n, -1)
        else:
            out = F.scaled_dot_product_attention(folded, keys, values, self._mask)
        return out.view(self._G, self._group, n, self._D).permute(2, 0, 1, 3).reshape(n, -1, self._D), lse


class _Padded(_Part):
    """Several sequences with few rows and short pages, padded to the largest and run in one call."""

    def __init__(self, config: DecoderConfig, kv: PagedKV, sequences: list[PagedRows]) -> None:
        device = kv.data.device
        self._G, self._group, self._D = config.n_kv_heads, config.group, config.head_dim
        self._B = len(sequences)
        self._n = max(len(rows.visible) for rows in sequences)
        self._L = max(rows.length for rows in sequences)
        self._data = kv.data
        slots = torch.zeros(self._B, self._L, dtype=torch.int64)
        visible = torch.ones(self._B, self._n, dtype=torch.int64)
        for index, rows in enumerate(sequences):
            slots[index, : rows.length] = as_tensor(page_slots(rows.table, 0, rows.length, kv.block_size))
            visible[index, : len(rows.visible)] = torch.tensor(rows.visible)
        self._slots = slots.flatten().to(device)
        mask = hiding_mask(visible.to(device), self._L, kv.data.dtype).unsqueeze(1)
        self._mask = mask.expand(-1, self._group, -1, -1).reshape(self._B, 1, -1, self._L)
        counts = [len(rows.visible) for rows in sequences]
        self._pad: Tensor | None = None
        if min(counts) < self._n:
            starts = itertools.accumulate(counts, initial=0)
            pad = [
                [start + min(row, n - 1) for row in range(self._n)] for start, n in zip(starts, counts, strict=False)
            ]
            keep = [index * self._n + row for index, n in enumerate(counts) for row in range(n)]
            self._pad, self._keep = torch.tensor(pad, device=device).flatten(), torch.tensor(keep, device=device)

    def attend(self, layer: int, q: Tensor) -> tuple[Tensor, Tensor | None]:
        B, G, n, D = self._B, self._G, self._n, self._D
        pages = self._data[layer].index_select(0, self._slots).view(B, self._L, 2, G, D)
        keys, values = pages.permute(2, 0, 3, 1, 4).unbind(0)
        rows = q if self._pad is None else q.index_select(0, self._pad)
        folded = rows.view(B, n, G, self._group, D).permute(0, 2, 3, 1, 4).reshape(B, G, -1, D)
        out, lse = attend_lse(folded, keys, values, self._mask)
        out = out.view(B, G, self._group, n, D).permute(0, 3, 1, 2, 4).reshape(B * n, -1, D)
        lse = lse.view(B, G, self._group, n).permute(0, 3, 1, 2).reshape(B * n, -1)
        if self._pad is None:
            return out, lse
        return out.index_select(0, self._keep), lse.index_select(0, self._keep)
