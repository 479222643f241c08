"""The draft as a trainable module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from ssd_cluster.distill.data import Batch
from ssd_cluster.distill.initialise import EMBEDDING, HEAD, HEAD_IDS, write_draft
from ssd_cluster.distill.loss import head_loss
from ssd_cluster.distill.norm import rms_norm
from ssd_cluster.model.decoder_config import DecoderConfig, parse_config
from ssd_cluster.model.rope import inverse_frequencies

_NORM = "model.norm.weight"


class Layer(nn.Module):
    """One decoder layer; ``parts`` are its tensors under the names that follow "model.layers.N." in a checkpoint.

    The decoder of ``model`` works in place on paged memory; this is the same layer with gradients, on padded rows.
    """

    def __init__(self, config: DecoderConfig, parts: dict[str, Tensor]) -> None:
        super().__init__()
        self._config = config
        self.parts = nn.ParameterDict({_key(name): nn.Parameter(t.float()) for name, t in parts.items()})

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """x [B, S, E] of any float dtype -> [B, S, E]; ``rotation``: cosines and sines [S, 1, D]."""
        c, (B, S, _) = self._config, x.shape
        h = self._norm(x, "input_layernorm.weight")
        q, k, v = (self._linear(h, f"self_attn.{part}_proj").view(B, S, -1, c.head_dim) for part in "qkv")
        if c.qk_norm:
            q, k = (self._norm(z, f"self_attn.{part}_norm.weight") for z, part in ((q, "q"), (k, "k")))
        attended = _attend(_rotate(q, rotation), _rotate(k, rotation), v)
        x = x + self._linear(attended.reshape(B, S, -1), "self_attn.o_proj")
        h = self._norm(x, "post_attention_layernorm.weight")
        inner = F.silu(self._linear(h, "mlp.gate_proj")) * self._linear(h, "mlp.up_proj")
        return x + self._linear(inner, "mlp.down_proj")

    def tensors(self) -> dict[str, Tensor]:
        """Current values by the names given to the constructor."""
        return {name.replace("/", "."): p.detach() for name, p in self.parts.items()}

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, self.parts[_key(name)], self._config.norm_eps)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        bias = _key(f"{name}.bias")
        return F.linear(
            x,
            self.parts[_key(f"{name}.weight")].to(x.dtype),
            self.parts[bias].to(x.dtype) if bias in self.parts else None,
        )


def _key(name: str) -> str:
    return name.replace(".", "/")


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of x [B, S, N, D], halves apart as in Hugging Face's weights."""
    first, second = x.chunk(2, dim=-1)
    return x * rotation[0] + torch.cat((-second, first), -1) * rotation[1]


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of q [B, S, H, D] over k, v [B, S, G, D] -> [B, S, H, D], all query heads of a key head at once.

    Plain products: for documents of some hundred tokens their gradient takes two thirds of the fused kernel's time on
    a CPU (54 ms and 77 ms for [10, 200, 9, 64]).
    """
    (B, S, H, D), G = q.shape, k.shape[2]
    folded = (q * D**-0.5).view(B, S, G, H // G, D).permute(0, 2, 3, 1, 4).reshape(B, G, -1, D)
    scores = torch.matmul(folded, k.permute(0, 2, 3, 1)).view(B, H, S, S)
    hidden = torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1)
    scores = scores + torch.zeros(S, S, dtype=q.dtype, device=q.device).masked_fill_(hidden, -torch.inf)
    out = torch.matmul(scores.softmax(-1).view(B, G, -1, S), v.transpose(1, 2))
    return out.view(B, H, S, D).transpose(1, 2)


class Student(nn.Module):
    """Decoder layers from a draft checkpoint with a head of its own; input embeddings stay those of the target.

    Frozen embeddings let the shipped draft leave them out: they are the target's.

    Attributes:
        config: shape of the draft.
        head_ids: [V_head] target id of each column of the logits, or None.
        dtype: of the activations; weights are float32.
    """

    def __init__(self, checkpoint: Path, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        tensors = load_file(checkpoint / "model.safetensors")
        self._checkpoint = checkpoint
        self.dtype = dtype
        self.config = parse_config(json.loads((checkpoint / "config.json").read_text(encoding="utf-8")))
        self.head_ids = tensors.pop(HEAD_IDS, None)
        self.register_buffer("embedding", tensors.pop(EMBEDDING).to(dtype), persistent=False)
        self.head = nn.Parameter(tensors.pop(HEAD).float())
        self.norm = nn.Parameter(tensors.pop(_NORM).float())
        parts: list[dict[str, Tensor]] = [{} for _ in range(self.config.n_layers)]
        for name, tensor in tensors.items():
            _, _, number, part = name.split(".", 3)
            parts[int(number)][part] = tensor
        self.layers = nn.ModuleList(Layer(self.config, part) for part in parts)

    def forward(self, batch: Batch) -> Tensor:
        """[N, V_head] logits at ``batch.rows``, in ``dtype``."""
        return F.linear(self._hidden(batch), self.head.to(self.dtype))

    def loss(self, batch: Batch, cross_entropy: float) -> Tensor:
        """``law_loss`` of the logits, with a block of them in memory at a time."""
        return head_loss(self._hidden(batch), self.head, batch, cross_entropy)

    def _hidden(self, batch: Batch) -> Tensor:
        embedding: Any = self.embedding
        x = F.embedding(batch.tokens, embedding)
        rotation = self._rotation(x.shape[1], x.device)
        for layer in self.layers:
            x = layer(x, rotation)
        hidden = x.flatten(0, 1)[batch.rows]
        return rms_norm(hidden, self.norm, self.config.norm_eps)

    def _rotation(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        frequencies = inverse_frequencies(self.config.rope, self.config.head_dim).to(device)
        angles = (torch.arange(length, device=device)[:, None] * frequencies).repeat(1, 2)[:, None]
        scale = self.config.rope.attention_factor
        return (angles.cos() * scale).to(self.dtype), (angles.sin() * scale).to(self.dtype)

    def save(self, out: Path, dtype: torch.dtype = torch.bfloat16) -> None:
        """Write a checkpoint that loads like any other."""
        tensors = {_NORM: self.norm.detach().to(dtype), HEAD: self.head.detach().to(dtype)}
        for number, layer in enumerate(self.layers):
            if isinstance(layer, Layer):
                tensors |= {f"model.layers.{number}.{name}": t.to(dtype) for name, t in layer.tensors().items()}
        tensors[EMBEDDING] = load_file(self._checkpoint / "model.safetensors")[EMBEDDING]
        if self.head_ids is not None:
            tensors[HEAD_IDS] = self.head_ids
        config = json.loads((self._checkpoint / "config.json").read_text(encoding="utf-8"))
        write_draft(self._checkpoint, out, config, {name: t.cpu() for name, t in tensors.items()})
