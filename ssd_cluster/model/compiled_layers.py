"""Whether a decoder's layers can run in one compiled call, and that call."""

from __future__ import annotations

from ssd_kernels.cpu import CompiledLayers, Int8Layer, Layer, Norm, TiledLayer

from ssd_cluster.model.decoder_config import DecoderConfig
from ssd_cluster.model.linear import Int8Linear, Linear, TiledLinear
from ssd_cluster.model.norm import RMSNorm
from ssd_cluster.model.row_ops import CompiledRowOps, RowOps
from ssd_cluster.model.weights import DecoderWeights, LayerWeights


def compiled_layers(config: DecoderConfig, weights: DecoderWeights, ops: RowOps) -> CompiledLayers | None:
    """The layers in one call, or None: something in them runs in torch, or a rank holds a part of them.

    The functions that run are the same as without it, and so are the bits.
    """
    if not isinstance(ops, CompiledRowOps) or not weights.layers:
        return None
    layers = [_layer(layer) for layer in weights.layers]
    dtype = weights.norm.dtype
    known = [layer for layer in layers if layer is not None and CompiledLayers.fits(layer, dtype)]
    if len(known) < len(layers):
        return None
    return CompiledLayers(ops.kernels, known, config.n_heads, config.n_kv_heads, config.head_dim, dtype)


def _layer(weights: LayerWeights) -> Layer | None:
    qkv, out, gate_up, down = map(_linear, (weights.qkv, weights.out, weights.gate_up, weights.down))
    if qkv is None or out is None or gate_up is None or down is None:
        return None
    head_norm = None if weights.qk_norm is None else _norm(weights.qk_norm)
    return Layer(_norm(weights.attention_norm), qkv, head_norm, out, _norm(weights.mlp_norm), gate_up, down)


def _linear(linear: Linear) -> TiledLayer | Int8Layer | None:
    return linear.layer if isinstance(linear, TiledLinear | Int8Linear) else None


def _norm(norm: RMSNorm) -> Norm:
    return Norm(norm.scaled, norm.floor)
