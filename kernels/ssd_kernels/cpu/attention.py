"""Attention of few rows over paged keys and values, which are read where they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_kernels.cpu.library import CpuKernels

HEAD_MULTIPLE = 16
"""Head sizes must be a multiple of this."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one span, which share a block table.

    Attributes:
        first: index of the first row in q, kv and out.
        table: block ids.
        visible: positions of the pages that each row sees, at least 1.
        slots: entry that each row's keys and values go to: of the tails if ``tails`` is given, else of the pages.
        tails: first entry of each row's tail, or None.
        own: entries of its tail that each row sees, at least 1, the one written included; None without tails.
    """

    first: int
    table: Sequence[int]
    visible: Sequence[int]
    slots: Sequence[int]
    tails: Sequence[int] | None = None
    own: Sequence[int] | None = None


class _Plan(ctypes.Structure):
    """``Plan`` in attention.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("n_rows", "n_spans", "heads", "kv_heads", "D", "block_size")),
        *((name, ctypes.c_void_p) for name in ("rows", "spans", "tables", "pages", "tails")),
        *((name, ctypes.c_int64) for name in ("page_entries", "tail_entries", "tiles")),
        ("scratch", ctypes.c_void_p),
    )


class PagedAttention:
    """One forward's attention, for any number of layers. ``address``: of the plan, for the compiled functions."""

    def __init__(
        self,
        kernels: CpuKernels,
        spans: Sequence[Rows],
        pages: Tensor,
        block_size: int,
        tails: Tensor | None,
        heads: int,
    ) -> None:
        """Args:
        pages: [layers, entries, 2, G, D] float32 or bfloat16: keys, then values.
        tails: [layers, entries, 2, G, D] float32, or None if no span has any.
        heads: H, a multiple of G.
        """
        rows: list[int] = []
        places: list[int] = []
        tables: list[int] = []
        n = 0
        for span in spans:
            count = len(span.visible)
            places += (n, count, len(tables), max(span.visible))
            tables += span.table
            firsts, own = span.tails or [0] * count, span.own or [0] * count
            for index, fields in enumerate(zip(span.visible, span.slots, firsts, own, strict=True)):
                rows += (span.first + index, *fields)
            n += count
        self._kept = [(ctypes.c_int64 * len(part))(*part) for part in (rows, places, tables)]
        _, _, _, G, D = pages.shape
        self._plan = _Plan(
            n, len(spans), heads, G, D, block_size, *map(ctypes.addressof, self._kept), pages.data_ptr(),
            None if tails is None else tails.data_ptr(), pages.shape[1], 0 if tails is None else tails.shape[1],
            kernels.tiles,
        )  # fmt: skip
        self._memory = (pages, tails)
        self.address = ctypes.addressof(self._plan)
        self._is_bfloat16 = pages.dtype is torch.bfloat16
        self._scratch = torch.empty(kernels.scratch(self.address, self._is_bfloat16), dtype=torch.uint8)
        self._plan.scratch = self._scratch.data_ptr()
        self._attend = kernels.attend

    def attend(self, layer: int, q: Tensor, kv: Tensor, out: Tensor) -> None:
        """Write the rows' keys and values, then attend.

        Args:
            layer: index into pages and tails.
            q: [T, H, D] in the dtype of pages; a row's numbers are contiguous, rows need not be.
            kv: [T, 2, G, D], likewise.
            out: [T, H * D], contiguous; the rows of the spans are written.
        """
        self._attend(
            self.address,
            layer,
            q.data_ptr(),
            q.stride(0),
            kv.data_ptr(),
            kv.stride(0),
            out.data_ptr(),
            self._is_bfloat16,
        )
