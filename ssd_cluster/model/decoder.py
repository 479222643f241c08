"""The decoder of the Llama-like families: Llama, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_cluster.model.attention import AttentionBackend, AttentionPlan
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan
from ssd_cluster.model.compiled_layers import compiled_layers
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.rope import rotation_table
from ssd_cluster.model.row_ops import EagerRowOps, RowOps
from ssd_cluster.model.weights import DecoderWeights, LayerWeights


class Decoder:
    """Runs flat, ragged batches; holds no state besides weights (keys and values belong to the attention backend)."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        attention: AttentionBackend,
        n_positions: int,
        row_ops: RowOps | None = None,
    ) -> None:
        self._config = config
        self._weights = weights
        self._attention = attention
        self._ops = row_ops or EagerRowOps()
        self._compiled = compiled_layers(config, weights, self._ops)
        self._device = weights.embedding.table.device
        self._rotations = rotation_table(config.rope, config.head_dim, n_positions, self._device)

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Logits [n_logits, V_out] float32, in span order, then row order.

        Raises:
            ValueError: a token or position is out of range, or a span does not fit its pages or tails.
        """
        return self.logits(self.hidden(batch))

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, V_out] float32 from rows of ``hidden``."""
        if not len(hidden):
            return torch.empty((0, self._weights.n_outputs), device=self._device)
        return self._weights.head.unrounded(hidden)

    def hidden(self, batch: ForwardBatch) -> Tensor:
        """What the head sees, [n_logits, E], in the order of ``forward``'s logits.

        Raises:
            ValueError: as ``forward``.
        """
        weights = self._weights
        tokens, positions, wanted = _flatten(batch)
        if not tokens:
            return weights.embedding.table.new_empty((0, self._config.hidden))
        self._check(tokens, positions)
        plan = self._attention.plan(batch)
        rotation = self._rotations[torch.tensor(positions, device=self._device)].unsqueeze(1)
        # The residual stream stays in float32: in bfloat16 it would be rounded anew in every layer.
        hidden = weights.embedding(torch.tensor(tokens, device=self._device))
        attention = plan.compiled
        if self._compiled is not None and attention is not None:
            delta: Tensor | None = self._compiled(hidden, rotation, attention)
        else:
            delta = None
            for index, layer in enumerate(weights.layers):
                delta = self._layer(index, layer, hidden, delta, rotation, plan)
        normal = self._ops.add_norm(hidden, delta, weights.norm)
        if len(wanted) < len(tokens):
            return normal[torch.tensor(wanted, dtype=torch.int64, device=self._device)]
        return normal

    def _layer(
        self,
        index: int,
        layer: LayerWeights,
        hidden: Tensor,
        delta: Tensor | None,
        rotation: Tensor,
        plan: AttentionPlan,
    ) -> Tensor:
        """Add ``delta`` and the attention of a layer to ``hidden`` [T, E] in place. Returns what its MLP adds."""
        config, ops = self._config, self._ops
        H, G, D = config.n_heads, config.n_kv_heads, config.head_dim
        heads = layer.qkv(ops.add_norm(hidden, delta, layer.attention_norm)).view(-1, H + 2 * G, D)
        ops.rotate(heads, H + G, layer.qk_norm, rotation)
        attended = plan.attend(index, heads[:, :H], heads[:, H:].view(-1, 2, G, D))
        gate_up = layer.gate_up(ops.add_norm(hidden, layer.out(attended), layer.mlp_norm))
        return layer.down(ops.gate(gate_up))

    def _check(self, tokens: list[int], positions: list[int]) -> None:
        if max(positions) >= len(self._rotations):
            raise ValueError(f"position {max(positions)} is beyond the context of {len(self._rotations)} tokens")
        if min(tokens) < 0 or max(tokens) >= self._config.vocab_size:
            raise ValueError(f"token ids must be within the vocabulary of {self._config.vocab_size}")


def _flatten(batch: ForwardBatch) -> tuple[list[int], list[int], list[int]]:
    """(tokens, positions, rows whose logits are wanted) of a batch, in span order."""
    tokens: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    for span in batch.spans:
        first = len(tokens)
        tokens += span.tokens
        if isinstance(span, CausalSpan):
            positions += range(span.start, span.start + len(span.tokens))
            wanted += range(first + span.logits_from, len(tokens))
            continue
        positions += span.positions if isinstance(span, MaskedSpan) else map(int.__add__, span.visible, span.depths)
        wanted += range(first, len(tokens))
    return tokens, positions, wanted
