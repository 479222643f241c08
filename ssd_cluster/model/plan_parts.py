"""What attention backends share in planning a forward: writes to pages, tails of tree rows, batches of both kinds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from ssd_cluster.model.attention import AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan, TreeSpan
from ssd_cluster.model.kv import PagedKV, TailPool
from ssd_cluster.model.paged import as_tensor, page_slots
from ssd_cluster.model.partial import hiding_mask


def plan_spans(
    batch: ForwardBatch,
    device: torch.device,
    causal: Callable[[list[CausalSpan]], AttentionPlan],
    tree: Callable[[list[TreeSpan]], AttentionPlan],
) -> AttentionPlan:
    """The plan of a batch from the plans of its causal spans and of its tree spans.

    Raises:
        ValueError: a span has an ancestor mask; backends that can run such batches plan them themselves.
    """
    if any(isinstance(span, MaskedSpan) for span in batch.spans):
        raise ValueError("masked spans run on the sdpa backend only, and not beside other spans")
    chains = [span for span in batch.spans if isinstance(span, CausalSpan) and span.tokens]
    trees = [span for span in batch.spans if isinstance(span, TreeSpan) and span.tokens]
    if not trees:
        return causal(chains)
    if not chains:
        return tree(trees)
    return MixedPlan(batch, device, causal(chains), tree(trees))


class MixedPlan(AttentionPlan):
    """Causal and tree spans in one forward."""

    def __init__(self, batch: ForwardBatch, device: torch.device, causal: AttentionPlan, tree: AttentionPlan) -> None:
        self._causal, self._tree = causal, tree
        is_tree = [isinstance(span, TreeSpan) for span in batch.spans for _ in span.tokens]
        mask = torch.tensor(is_tree, device=device)
        self._tree_rows = mask.nonzero().flatten()
        self._causal_rows = (~mask).nonzero().flatten()

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        out = q.new_empty((len(q), q.shape[1] * q.shape[2]))
        for plan, rows in ((self._causal, self._causal_rows), (self._tree, self._tree_rows)):
            out.index_copy_(0, rows, plan.attend(layer, q.index_select(0, rows), kv.index_select(0, rows)))
        return out


class PageWrites:
    """Where the keys and values of causal spans go.

    Raises:
        ValueError: a block table is too short.
    """

    def __init__(self, kv: PagedKV, spans: list[CausalSpan]) -> None:
        slots = [
            page_slots(span.block_table, span.start, span.start + len(span.tokens), kv.block_size) for span in spans
        ]
        self._slots = slots[0] if len(slots) == 1 else torch.cat([as_tensor(part) for part in slots])
        if isinstance(self._slots, Tensor):
            self._slots = self._slots.to(kv.data.device)
        self._data = kv.data

    def write(self, layer: int, kv: Tensor) -> None:
        """Keys and values [T, 2, G, D] of the spans' tokens into a layer's pages."""
        if isinstance(self._slots, range):
            self._data[layer, self._slots.start : self._slots.stop] = kv
        else:
            self._data[layer].index_copy_(0, self._slots, kv)


def checked_tails(pool: TailPool | None, spans: list[TreeSpan]) -> TailPool:
    """The pool, if these spans fit it.

    Raises:
        ValueError: there is none, a row sees no page, or there is no room for its tail.
    """
    if pool is None:
        raise ValueError("tree rows need tails; the model was loaded without any")
    if min(min(span.visible) for span in spans) < 1:
        raise ValueError("a tree row must see at least one position of its session's pages")
    deepest = max(max(span.depths) for span in spans)
    if deepest >= pool.depth:
        raise ValueError(f"tail entry {deepest} does not fit tails of {pool.depth} tokens")
    return pool


class TailRows:
    """The tails of R tree rows.

    Attributes:
        length: entries of the longest tail, the one that is written included.
        mask: [R, length], 0 at a row's own entries and -inf behind them; None if all are equally long.

    Raises:
        ValueError: as ``checked_tails``.
    """

    def __init__(self, pool: TailPool | None, spans: list[TreeSpan]) -> None:
        pool = checked_tails(pool, spans)
        tails = list(itertools.chain.from_iterable(span.tails for span in spans))
        depths = list(itertools.chain.from_iterable(span.depths for span in spans))
        deepest = max(depths)
        device = pool.data.device
        entries = torch.tensor(depths, device=device)
        self.length = deepest + 1
        self._tails = torch.tensor(tails, device=device)
        self._slots = self._tails * pool.depth + entries
        self._entries_of = pool.data.flatten(1, 2).unbind(0)
        self._tails_of = pool.data[:, :, : self.length].unbind(0)
        self.mask: Tensor | None = None
        if min(depths) < deepest:
            self.mask = hiding_mask(entries + 1, self.length, pool.data.dtype)

    def write(self, layer: int, kv: Tensor) -> None:
        """Keys and values [R, 2, G, D] of the rows' tokens into their tails."""
        self._entries_of[layer].index_copy_(0, self._slots, kv.float())

    def read(self, layer: int) -> Tensor:
        """Keys and values of the rows' tails, [R, length, 2, G, D] float32."""
        return self._tails_of[layer].index_select(0, self._tails)
