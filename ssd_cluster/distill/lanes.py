"""Decoding of many independent sequences at once, for collecting: dense memory in lanes instead of pages.

A lane is a group of sequences that start together and so have about the same length; one attention call per lane and
layer replaces one per sequence. Letters as in ``model.batch``; W sequences in a lane, S positions of memory for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_cluster.config import ModelSettings
from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.attention import AttentionBackend, AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch
from ssd_cluster.model.checkpoint import open_checkpoint, resolve_checkpoint
from ssd_cluster.model.decoder import Decoder
from ssd_cluster.model.decoder_config import DecoderConfig, parse_config
from ssd_cluster.model.device import resolve_device, resolve_dtype, set_threads
from ssd_cluster.model.linear import linear_backend
from ssd_cluster.model.weights import load_weights

_STEP = 16  # visible lengths are rounded up to this, so that shapes repeat
_HEAD_ROWS = 64  # rows whose logits are there at once


class LaneAttention(AttentionBackend):
    """Attention for batches whose spans name their place as ``block_table = [slot]``, in ascending order of slots.

    ``data``: per layer [slots, 2, G, S, D] keys and values; slots [i * W, (i + 1) * W) are lane i.
    """

    def __init__(
        self, config: DecoderConfig, lanes: int, width: int, positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Reserve memory for ``lanes * width`` sequences; the base class's pages and tails are not used."""
        self.config = config
        self.width = width
        self.positions = positions
        shape = (lanes * width, 2, config.n_kv_heads, positions, config.head_dim)
        self.data = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.n_layers)]

    def plan(self, batch: ForwardBatch) -> AttentionPlan:
        return LanePlan(self, [span for span in batch.spans if isinstance(span, CausalSpan)])


@dataclass(frozen=True, slots=True)
class _LaneRows:
    """Single-token rows of one lane: their rows in the batch, their places in the lane, and what each place sees."""

    first: int
    rows: Tensor
    places: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Prefill:
    """Several tokens of one sequence: rows [start, stop) of the batch, and what each row sees."""

    slot: int
    start: int
    stop: int
    length: int
    mask: Tensor


class LanePlan(AttentionPlan):
    """One forward of a ``LaneAttention``."""

    def __init__(self, backend: LaneAttention, spans: list[CausalSpan]) -> None:
        self._backend = backend
        device = backend.data[0].device
        starts = list(itertools.accumulate((len(span.tokens) for span in spans), initial=0))
        slots = [span.block_table[0] for span in spans for _ in span.tokens]
        at = [span.start + i for span in spans for i in range(len(span.tokens))]
        self._slots = torch.tensor(slots, device=device)
        self._at = torch.tensor(at, device=device)
        single: dict[int, list[tuple[int, CausalSpan]]] = {}
        self._prefills: list[_Prefill] = []
        for span, start in zip(spans, starts, strict=False):
            if len(span.tokens) == 1:
                single.setdefault(span.block_table[0] // backend.width, []).append((start, span))
            else:
                self._prefills.append(self._prefill(span, start))
        self._lanes = [self._lane(lane, rows) for lane, rows in single.items()]

    def _hiding(self, visible: Tensor, length: int) -> Tensor:
        """[..., length]: -inf where a position is beyond ``visible``."""
        data = self._backend.data[0]
        hidden = torch.arange(length, device=data.device) >= visible[..., None]
        return torch.zeros(hidden.shape, dtype=data.dtype, device=data.device).masked_fill_(hidden, -torch.inf)

    def _prefill(self, span: CausalSpan, start: int) -> _Prefill:
        n, device = len(span.tokens), self._backend.data[0].device
        visible = torch.arange(span.start + 1, span.start + n + 1, device=device)
        return _Prefill(span.block_table[0], start, start + n, span.start + n, self._hiding(visible, span.start + n))

    def _lane(self, lane: int, spans: list[tuple[int, CausalSpan]]) -> _LaneRows:
        backend, device = self._backend, self._backend.data[0].device
        first = lane * backend.width
        places = torch.tensor([span.block_table[0] - first for _, span in spans], device=device)
        visible = torch.ones(backend.width, dtype=torch.int64, device=device)
        visible[places] = torch.tensor([span.start + 1 for _, span in spans], device=device)
        length = min(backend.positions, -(-int(visible.max()) // _STEP) * _STEP)
        rows = torch.tensor([start for start, _ in spans], device=device)
        return _LaneRows(first, rows, places, self._hiding(visible, length)[:, None, None, :])

    def attend(self, layer: int, q: Tensor, kv: Tensor) -> Tensor:
        config, data, width = self._backend.config, self._backend.data[layer], self._backend.width
        D = config.head_dim
        data[self._slots, :, :, self._at] = kv
        out = q.new_empty(len(q), q.shape[1], D)
        for lane in self._lanes:
            queries = q.new_zeros(width, q.shape[1], 1, D)
            queries[lane.places, :, 0] = q[lane.rows]
            keys, values = data[lane.first : lane.first + width, :, :, : lane.mask.shape[-1]].unbind(1)
            attended = F.scaled_dot_product_attention(queries, keys, values, lane.mask, enable_gqa=config.group > 1)
            out[lane.rows] = attended[lane.places, :, 0]
        for part in self._prefills:
            keys, values = data[part.slot : part.slot + 1, :, :, : part.length].unbind(1)
            heads = q[part.start : part.stop].transpose(0, 1).unsqueeze(0)
            attended = F.scaled_dot_product_attention(heads, keys, values, part.mask, enable_gqa=config.group > 1)
            out[part.start : part.stop] = attended[0].transpose(0, 1)
        return out.flatten(1)


class LaneDecoder:
    """The target with memory for ``lanes * width`` sequences of ``positions`` tokens.

    Attributes:
        lanes, width, positions: as given.
        device: where it runs.
    """

    def __init__(self, settings: ModelSettings, lanes: int, width: int, positions: int) -> None:
        """Load the model.

        Raises:
            CheckpointError: it is missing or broken, or its context is shorter than ``positions``.
        """
        set_threads(settings.compute_threads)
        checkpoint = open_checkpoint(resolve_checkpoint(settings.path))
        config = parse_config(checkpoint.config, checkpoint.generation_config)
        if positions > config.max_context:
            raise CheckpointError(
                f"{settings.path} has a context of {config.max_context} tokens, collecting needs {positions}: "
                "use shorter prompts and answers"
            )
        self.lanes, self.width, self.positions = lanes, width, positions
        self.device = resolve_device(settings.device)
        dtype = resolve_dtype(settings.dtype, self.device)
        weights = load_weights(config, checkpoint.tensors(), linear_backend(dtype, self.device), dtype, self.device)
        attention = LaneAttention(config, lanes, width, positions, dtype, self.device)
        self._decoder = Decoder(config, weights, attention, positions)

    @torch.inference_mode()
    def forward(self, spans: list[CausalSpan]) -> Iterator[Tensor]:
        """[n, V] float32 logits of spans in ascending order of slots (``block_table = [slot]``), some rows at a time.

        All rows at once would be so much memory that the system takes it back after every forward and has to clear it
        again for the next: with 288 rows that took as long as the layers themselves.

        Raises:
            ValueError: a position is beyond ``positions`` or a token is out of range.
        """
        for rows in torch.split(self._decoder.hidden(ForwardBatch(list(spans))), _HEAD_ROWS):
            yield self._decoder.logits(rows)
