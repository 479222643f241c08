"""The ``flashinfer`` attention backend: FlashInfer's paged attention on CUDA, as a cascade for tree rows.

Written for flashinfer-python 0.7.4 (fits 0.6.18). Pages are handed over as strided views, nothing is copied. All rows
of a session's tree share one unmasked pass over the positions that every one of them sees; what a row sees beyond
those, and its own tail, is a short dense pass in float32; the two are merged by log-sum-exp (speculation.md section 7).
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Protocol

import torch
from ssd_kernels.backends import KernelUnavailable, require_flashinfer
from ssd_kernels.merge import merge_state
from torch import Tensor

from ssd_cluster.errors import ConfigError
from ssd_cluster.model.attention import AttentionBackend, AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, TreeSpan
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.kv import PagedKV, TailPool
from ssd_cluster.model.paged import as_tensor, page_slots
from ssd_cluster.model.partial import attend_lse_dense, hiding_mask
from ssd_cluster.model.plan_parts import PageWrites, TailRows, plan_spans

WORKSPACE_BYTES = 128 * 1024 * 1024
"""Scratch memory for FlashInfer's split-k results: the size its documentation recommends."""

HEAD_DIMS = (64, 128, 256)
"""Head sizes that its prefill kernels are made for on every architecture."""

Pages = tuple[list[int], int]
"""Block table and number of positions that are looked at."""


class PagedWrapper(Protocol):
    """The part of ``flashinfer.BatchPrefillWithPagedKVCacheWrapper`` that is used, pages in layout NHD."""

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Prepare batched attention of ragged query rows over pages."""

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, return_lse: bool) -> Any:
        """[T, H, D], with the log-sum-exps [T, H] to base 2 if asked for."""


class FlashInferAttention(AttentionBackend):
    """See the module's docstring.

    Raises:
        ConfigError: device, dtype or head size do not fit, or FlashInfer is missing.
    """

    def __init__(self, config: DecoderConfig, kv: PagedKV, tails: TailPool | None) -> None:
        super().__init__(config, kv, tails)
        # One for rows with a causal mask, one without a mask: both are planned before either runs.
        self.causal, self.shared = self._wrappers()

    def _wrappers(self) -> tuple[PagedWrapper, PagedWrapper]:
        device, dtype = self.kv.data.device, self.kv.data.dtype
        try:
            flashinfer = require_flashinfer(device)
        except KernelUnavailable as error:
            raise ConfigError(f"attention flashinfer: {error}; use attention sdpa", param="attention") from error
        if dtype not in (torch.float16, torch.bfloat16):
            raise ConfigError(f"attention flashinfer needs dtype bfloat16, not {dtype}", param="attention")
        if self.config.head_dim not in HEAD_DIMS:
            raise ConfigError(
                f"attention flashinfer needs heads of {HEAD_DIMS}, the model's have {self.config.head_dim}; "
                "use attention sdpa",
                param="attention",
            )
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        return wrapper(workspace, "NHD"), wrapper(workspace, "NHD")

    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        return plan_spans(
            batch, self.kv.data.device, lambda spans: CausalPlan(self, spans), lambda spans: TreePlan(self, spans)
        )

    def plan_pages(self, wrapper: PagedWrapper, counts: list[int], pages: list[Pages], causal: bool) -> None:
        """Prepare ``wrapper`` for sequences of ``counts`` query rows over the first positions of their pages.

        With ``causal`` the last row sees all of them and each row before it one fewer. Index arrays stay on the host,
        where FlashInfer plans; it copies them itself.
        """
        size = self.kv.block_size
        used = [table[: -(-length // size)] for table, length in pages]
        config = self.config
        wrapper.plan(
            _offsets(counts),
            _offsets([len(blocks) for blocks in used]),
            torch.tensor(list(itertools.chain.from_iterable(used)), dtype=torch.int32),
            torch.tensor([(length - 1) % size + 1 for _, length in pages], dtype=torch.int32),
            config.n_heads,
            config.n_kv_heads,
            config.head_dim,
            size,
            causal=causal,
            q_data_type=self.kv.data.dtype,
            kv_data_type=self.kv.data.dtype,
        )

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of a layer, each a view [blocks, block_size, G, D]."""
        data = self.kv.data[layer].view(-1, self.kv.block_size, *self.kv.data.shape[2:])
        return data[:, :, 0], data[:, :, 1]


def _offsets(counts: list[int]) -> Tensor:
    """0 and the running sums, int32 [n + 1]."""
    return torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32)


class CausalPlan(AttentionPlan):
    """Causal spans: keys and values go to the pages, each row sees the pages up to itself."""

    def __init__(self, backend: FlashInferAttention, spans: list[CausalSpan]) -> None:
        self._backend = backend
        self._writes = PageWrites(backend.kv, spans)
        counts = [len(span.tokens) for span in spans]
        pages = [(span.block_table, span.start + len(span.tokens)) for span in spans]
        backend.plan_pages(backend.causal, counts, pages, causal=True)

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        self._writes.write(layer, kv)
        pages = self._backend.pages(layer)
        rows = q.to(self._backend.kv.data.dtype).contiguous()
        out: Tensor = self._backend.causal.run(rows, pages, return_lse=False)
        return out.reshape(len(q), -1).to(q.dtype)


class TreePlan(AttentionPlan):
    """Tree spans: keys and values go to the tails, each row sees a prefix of its session's pages and its own tail."""

    def __init__(self, backend: FlashInferAttention, spans: list[TreeSpan]) -> None:
        self._backend = backend
        self._tails = TailRows(backend.tails, spans)
        rest: list[Tensor] = []
        pages: list[Pages] = []
        for span in spans:
            shared, size = min(span.visible), backend.kv.block_size
            # Checks that the pages hold all that a row sees: FlashInfer reads what it is told.
            seen = as_tensor(page_slots(span.block_table, 0, max(span.visible), size))
            rest += [seen[shared:visible] for visible in span.visible]
            pages.append((span.block_table, shared))
        backend.plan_pages(backend.shared, [len(span.tokens) for span in spans], pages, causal=False)
        self._plan_rest(rest)

    def _plan_rest(self, rest: list[Tensor]) -> None:
        """Slots [R, W] of what each row sees beyond the shared positions, and the mask over them and the tails."""
        device = self._backend.kv.data.device
        lengths = torch.tensor([len(slots) for slots in rest])
        width = int(lengths.max())
        slots = torch.zeros(len(rest), width, dtype=torch.int64)
        for row, own in zip(slots, rest, strict=True):
            row[: len(own)] = own
        self._rest = slots.flatten().to(device)
        self._width = width
        beyond = hiding_mask(lengths.to(device), width, torch.float32)
        tails = self._tails.mask
        if tails is None:
            tails = beyond.new_zeros(len(rest), self._tails.length)
        self._mask = torch.cat([beyond, tails], dim=1)[:, None, None, :]

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        self._tails.write(layer, kv)
        backend = self._backend
        rows = q.to(backend.kv.data.dtype).contiguous()
        prefix, prefix_lse = backend.shared.run(rows, backend.pages(layer), return_lse=True)
        short = self._tails.read(layer)
        if self._width:
            beyond = backend.kv.data[layer].index_select(0, self._rest).float()
            short = torch.cat([beyond.view(len(q), self._width, *short.shape[2:]), short], dim=1)
        keys, values = short.permute(2, 0, 3, 1, 4).unbind(0)
        grouped = q.float().reshape(len(q), -1, backend.config.group, q.shape[-1])
        own, own_lse = attend_lse_dense(grouped, keys, values, self._mask)
        # FlashInfer's log-sum-exps are to base 2.
        out, _ = merge_state(
            prefix.float(), prefix_lse * math.log(2), own.flatten(1, 2).contiguous(), own_lse.flatten(1, 2)
        )
        return out.flatten(1).to(q.dtype)
