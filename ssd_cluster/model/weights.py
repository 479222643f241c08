"""From a checkpoint's tensors to the decoder's fused and checked weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.linear import Linear, LinearFactory
from ssd_cluster.model.norm import RMSNorm
from ssd_cluster.model.rope import interleave

HEAD_IDS = "lm_head_ids"


class Embedding:
    """Rows of ``table`` [V, E] for token ids, in float32."""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def __call__(self, tokens: Tensor) -> Tensor:
        """[T, E] float32 of ids [T] int64."""
        return F.embedding(tokens, self.table).float()


class Layout:
    """How layers are made from weights: this one is for a model that is held as a whole.

    Attributes:
        vocabulary: rows of the embedding that are held, or None for all.
    """

    @property
    def vocabulary(self) -> int | None:
        return None

    def embedding(self, table: Tensor) -> Embedding:
        return Embedding(table)

    def row(self, part: Linear) -> Linear:
        """A layer that takes what attention or the MLP computed, and whose result goes to the residual stream."""
        return part

    def head(self, part: Linear) -> Linear:
        """The layer that gives the logits."""
        return part


WHOLE = Layout()


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. ``qkv`` gives the H query, G key and G value heads, rotary dimensions interleaved.

    ``qk_norm``: the per-head norm of queries and keys together, or None.
    """

    attention_norm: RMSNorm
    qkv: Linear
    qk_norm: RMSNorm | None
    out: Linear
    mlp_norm: RMSNorm
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole model. ``output_ids``: target id of each column of ``head`` if the head is reduced, else None.

    ``n_outputs``: columns of the head.
    """

    embedding: Embedding
    layers: tuple[LayerWeights, ...]
    norm: RMSNorm
    head: Linear
    output_ids: Tensor | None
    n_outputs: int


class _Store:
    """Tensors of a checkpoint, taken out one by one so that raw and fused copies of all layers never coexist."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]], dtype: torch.dtype, device: torch.device) -> None:
        self._tensors = dict(tensors)
        self._dtype = dtype
        self._device = device

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor ``name``, checked against ``shape``, in the model's dtype and on its device."""
        found = self.take_if_present(name, *shape)
        if found is None:
            raise CheckpointError(f"tensor {name} is missing; fetch the checkpoint again")
        return found

    def take_if_present(self, name: str, *shape: int) -> Tensor | None:
        found = self._tensors.pop(name, None)
        if found is None:
            return None
        if tuple(found.shape) != shape:
            raise CheckpointError(f"tensor {name} has shape {list(found.shape)}, config.json asks for {list(shape)}")
        return found.to(self._device, self._dtype)

    def take_ids(self, vocab_size: int) -> Tensor | None:
        """``lm_head_ids``: distinct ids of the target, one per column of a reduced head."""
        ids = self._tensors.pop(HEAD_IDS, None)
        if ids is None:
            return None
        ids = ids.to(torch.int64)
        if ids.dim() != 1 or not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
            raise CheckpointError(f"tensor {HEAD_IDS} must list ids below vocab_size ({vocab_size})")
        if len(torch.unique(ids)) != len(ids):
            raise CheckpointError(f"tensor {HEAD_IDS} names an id twice")
        return ids.to(self._device)

    def finish(self, ignored: tuple[str, ...]) -> None:
        """Refuse tensors that the decoder would silently leave out."""
        left = [name for name in self._tensors if not name.endswith("rotary_emb.inv_freq") and name not in ignored]
        if left:
            raise CheckpointError(f"tensor {left[0]} belongs to a feature that the decoder does not have")


def load_weights(
    config: DecoderConfig,
    tensors: Iterable[tuple[str, Tensor]],
    linear: LinearFactory,
    dtype: torch.dtype,
    device: torch.device,
    layout: Layout = WHOLE,
) -> DecoderWeights:
    """Fuse and check the tensors of a checkpoint (Hugging Face names).

    ``config`` and ``tensors`` are those of the part that ``layout`` is for.

    Raises:
        CheckpointError: a tensor is missing, has the wrong shape, or is not known.
    """
    store = _Store(tensors, dtype, device)
    held = config.vocab_size if layout.vocabulary is None else layout.vocabulary
    embedding = store.take("model.embed_tokens.weight", held, config.hidden)
    layers = tuple(_layer(config, store, f"model.layers.{i}.", linear, layout) for i in range(config.n_layers))
    output_ids = store.take_ids(config.vocab_size)
    columns = held if output_ids is None else len(output_ids)
    head = embedding if config.tied_head else store.take("lm_head.weight", columns, config.hidden)
    if config.tied_head and output_ids is not None:
        head = embedding[output_ids]
    norm = RMSNorm(store.take("model.norm.weight", config.hidden), config.norm_eps)
    store.finish(("lm_head.weight",) if config.tied_head else ())
    n_outputs = config.vocab_size if output_ids is None else columns
    return DecoderWeights(
        layout.embedding(embedding), layers, norm, layout.head(linear(head, None)), output_ids, n_outputs
    )


def _layer(config: DecoderConfig, store: _Store, name: str, linear: LinearFactory, layout: Layout) -> LayerWeights:
    D, E, inner = config.head_dim, config.hidden, config.intermediate
    H, G = config.n_heads, config.n_kv_heads
    order = interleave(D)
    weights, biases = [], []
    for part, heads in (("q", H), ("k", G), ("v", G)):
        weight = store.take(f"{name}self_attn.{part}_proj.weight", heads * D, E)
        bias = store.take_if_present(f"{name}self_attn.{part}_proj.bias", heads * D)
        rows = (torch.arange(heads)[:, None] * D + (torch.arange(D) if part == "v" else order)).flatten()
        weights.append(weight[rows])
        biases.append(None if bias is None else bias[rows])
    qk_norm = None
    if config.qk_norm:
        q_norm, k_norm = (store.take(f"{name}self_attn.{part}_norm.weight", D)[order] for part in "qk")
        qk_norm = RMSNorm(torch.cat([q_norm.expand(H, D), k_norm.expand(G, D)]), config.norm_eps)
    mlp = [store.take(f"{name}mlp.{part}_proj.weight", inner, E) for part in ("gate", "up")]
    mlp_biases = [store.take_if_present(f"{name}mlp.{part}_proj.bias", inner) for part in ("gate", "up")]
    return LayerWeights(
        attention_norm=RMSNorm(store.take(f"{name}input_layernorm.weight", E), config.norm_eps),
        qkv=linear(torch.cat(weights), _fuse(biases)),
        qk_norm=qk_norm,
        out=layout.row(_with_bias(store, linear, f"{name}self_attn.o_proj", E, H * D)),
        mlp_norm=RMSNorm(store.take(f"{name}post_attention_layernorm.weight", E), config.norm_eps),
        gate_up=linear(torch.cat(mlp), _fuse(mlp_biases)),
        down=layout.row(_with_bias(store, linear, f"{name}mlp.down_proj", E, inner)),
    )


def _with_bias(store: _Store, linear: LinearFactory, name: str, outputs: int, inputs: int) -> Linear:
    weight = store.take(f"{name}.weight", outputs, inputs)
    return linear(weight, store.take_if_present(f"{name}.bias", outputs))


def _fuse(biases: list[Tensor | None]) -> Tensor | None:
    """One bias for fused rows; all of them have one or none has."""
    present = [bias for bias in biases if bias is not None]
    if present and len(present) < len(biases):
        raise CheckpointError("some of the projections of a layer that run together have a bias and some have none")
    return torch.cat(present) if present else None
