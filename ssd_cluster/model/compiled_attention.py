"""The ``sdpa`` backend with a kernel in C for what decoding runs: few rows, keys and values read where they lie.

Rows of a span share one pass over its pages, and tree rows look at their tails in the same pass. Long causal spans
(prefill) and spans with an ancestor mask stay with torch's kernels.
"""

from __future__ import annotations

import torch
from ssd_kernels.cpu import HEAD_MULTIPLE, CpuKernels, PagedAttention, Rows
from torch import Tensor

from ssd_cluster.model.attention import AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan, TreeSpan
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.kv import PagedKV, TailPool
from ssd_cluster.model.paged import check_table
from ssd_cluster.model.partial import attend_lse_dense
from ssd_cluster.model.plan_parts import checked_tails
from ssd_cluster.model.sdpa import CausalPlan, SdpaAttention

FEW_ROWS = 16
"""Causal spans of more rows run in torch, which with AMX is faster from about 12 rows on (one Sapphire Rapids
core, bfloat16, 9 heads of 64 on 3, 256 positions: 49 and 48 us for 6 rows, 120 and 100 for 16, 238 and 133 for 32). The
rows of a verification all run here, where they do not depend on their number."""


class CompiledAttention(SdpaAttention):
    """See the module's docstring. Head sizes are multiples of ``HEAD_MULTIPLE``."""

    def __init__(self, config: DecoderConfig, kv: PagedKV, tails: TailPool | None, kernels: CpuKernels) -> None:
        super().__init__(config, kv, tails)
        self.kernels = kernels
        self.tail_entries = None if tails is None else tails.data.flatten(1, 2)

    @staticmethod
    def fits(config: DecoderConfig) -> bool:
        """Whether the kernel can run this model's heads."""
        return config.head_dim % HEAD_MULTIPLE == 0

    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        short = [span for span in batch.spans if span.tokens and not _is_long(span)]
        if not short or any(isinstance(span, MaskedSpan) for span in batch.spans):
            return super().plan(batch)
        return CompiledPlan(self, batch)


def _is_long(span: CausalSpan | TreeSpan | MaskedSpan) -> bool:
    return isinstance(span, CausalSpan) and len(span.tokens) > FEW_ROWS


class CompiledPlan(AttentionPlan):
    """Short spans in one call per layer, and each long span in a call of torch's kernel.

    Raises:
        ValueError: a block table is too short, or tree rows do not fit the tails.
    """

    def __init__(self, backend: CompiledAttention, batch: ForwardBatch) -> None:
        self._long: list[tuple[CausalPlan, slice]] = []
        short: list[Rows] = []
        first = 0
        for span in batch.spans:
            stop = first + len(span.tokens)
            if isinstance(span, CausalSpan) and _is_long(span):
                self._long.append((CausalPlan(backend, [span]), slice(first, stop)))
            elif isinstance(span, CausalSpan) and span.tokens:
                short.append(_causal_rows(first, span, backend.kv.block_size))
            elif isinstance(span, TreeSpan) and span.tokens:
                short.append(_tree_rows(first, span, backend.tails, backend.kv.block_size))
            first = stop
        kv, heads = backend.kv, backend.config.n_heads
        self._short = PagedAttention(backend.kernels, short, kv.data, kv.block_size, backend.tail_entries, heads)

    @property
    def compiled(self) -> PagedAttention | None:
        return None if self._long else self._short

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        out = torch.empty((q.shape[0], q.shape[1] * q.shape[2]), dtype=q.dtype)
        self._short.attend(layer, q, kv, out)
        for plan, rows in self._long:
            out[rows] = plan.attend(layer, q[rows], kv[rows])
        return out


def _causal_rows(first: int, span: CausalSpan, block_size: int) -> Rows:
    stop = span.start + len(span.tokens)
    check_table(span.block_table, stop, block_size)
    table = span.block_table
    slots = [table[position // block_size] * block_size + position % block_size for position in range(span.start, stop)]
    return Rows(first, table, range(span.start + 1, stop + 1), slots)


def _tree_rows(first: int, span: TreeSpan, tails: TailPool | None, block_size: int) -> Rows:
    pool = checked_tails(tails, [span])
    check_table(span.block_table, max(span.visible), block_size)
    firsts = [tail * pool.depth for tail in span.tails]
    slots = [tail + depth for tail, depth in zip(firsts, span.depths, strict=True)]
    return Rows(first, span.block_table, span.visible, slots, firsts, [depth + 1 for depth in span.depths])


def agrees(kernels: CpuKernels, dtype: torch.dtype) -> bool:
    """Whether the kernel gives what attention written out gives here, on a small example: a compiler can be broken."""
    generator = torch.Generator().manual_seed(0)
    G, group, D, n, length = 2, 3, 2 * HEAD_MULTIPLE, 4, 70
    heads = torch.randn(n, G * group + 2 * G, D, generator=generator).to(dtype)
    q, kv = heads[:, : G * group], heads[:, G * group :].view(n, 2, G, D)
    pages = torch.randn(1, length, 2, G, D, generator=generator).to(dtype)
    tails = torch.randn(1, n, 2, G, D, generator=generator)
    spans = [
        Rows(0, range(length), [length - 1, length], [length - 2, length - 1]),
        Rows(2, range(length), [length, 5], [1, 3], [0, 2], [2, 2]),
    ]
    out = torch.empty(n, G * group * D, dtype=dtype)
    PagedAttention(kernels, spans, pages, 1, tails, G * group).attend(0, q, kv, out)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for row, (visible, own) in enumerate(
        ((length - 1, slice(0)), (length, slice(0)), (length, slice(2)), (5, slice(2, 4)))
    ):
        seen = torch.cat([pages[0, :visible].float(), tails[0, own]]).permute(1, 2, 0, 3).unsqueeze(1)
        exact, _ = attend_lse_dense(q[row].float().view(1, G, group, D), seen[0], seen[1], None)
        if not torch.allclose(out[row].float(), exact.flatten(), rtol=tolerance, atol=tolerance):
            return False
    return True
