"""Shape of a decoder, read from a Hugging Face config.json of any supported family and checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.rope import ROPE_TYPES, Rope

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What the decoder needs to know about a model.

    Attributes:
        max_context: positions the model was made for.
        sliding_window: contexts longer than this would need windowed attention; None: no window.
        eos_ids: end-of-text ids of generation_config.json, else of config.json.
        qk_norm: queries and keys are normalised per head (Qwen3).
    """

    family: str
    vocab_size: int
    n_layers: int
    hidden: int
    intermediate: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    max_context: int
    norm_eps: float
    rope: Rope
    tied_head: bool
    qk_norm: bool
    sliding_window: int | None
    eos_ids: tuple[int, ...]

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.n_heads // self.n_kv_heads


def parse_config(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> DecoderConfig:
    """Read config.json, with RoPE in either form (``rope_theta`` and ``rope_scaling``, or ``rope_parameters``).

    Raises:
        CheckpointError: a value is missing or wrong, or the model needs a feature that the decoder does not have.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(f"model_type {family!r} is not supported; supported are {', '.join(FAMILIES)}")
    _refuse_unsupported(config)
    hidden, heads = _positive(config, "hidden_size"), _positive(config, "num_attention_heads")
    kv_heads = _positive(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(f"num_attention_heads ({heads}) is no multiple of num_key_value_heads ({kv_heads})")
    head_dim = _positive(config, "head_dim", 128 if family == "qwen3" else hidden // heads)
    if head_dim % 2:
        raise CheckpointError(f"head_dim must be even, not {head_dim}")
    context = _positive(config, "max_position_embeddings")
    return DecoderConfig(
        family=family,
        vocab_size=_positive(config, "vocab_size"),
        n_layers=_positive(config, "num_hidden_layers"),
        hidden=hidden,
        intermediate=_positive(config, "intermediate_size"),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        max_context=context,
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config, context),
        tied_head=bool(config.get("tie_word_embeddings", False)),
        qk_norm=family == "qwen3",
        sliding_window=_sliding_window(config, family),
        eos_ids=_eos_ids(config, generation_config or {}),
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise CheckpointError(f"hidden_act {activation!r} is not supported; only silu is")
    if config.get("quantization_config"):
        raise CheckpointError("quantization_config: quantised checkpoints are not supported; use the unquantised one")


def _positive(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{name} in config.json must be a positive integer, not {value!r}")
    return value


def _sliding_window(config: Mapping[str, Any], family: str) -> int | None:
    layers = config.get("layer_types")
    if layers is not None and all(kind == "full_attention" for kind in layers):
        return None
    window = config.get("sliding_window")
    if window is None or (family.startswith("qwen") and not config.get("use_sliding_window", False)):
        return None
    return _positive(config, "sliding_window")


def _eos_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    eos = generation_config.get("eos_token_id")
    eos = config.get("eos_token_id") if eos is None else eos
    if eos is None:
        return ()
    ids = eos if isinstance(eos, list) else [eos]
    if not all(isinstance(token, int) and token >= 0 for token in ids):
        raise CheckpointError(f"eos_token_id must be an id or a list of ids, not {eos!r}")
    return tuple(ids)


def _rope(config: Mapping[str, Any], context: int) -> Rope:
    entries = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    kind = entries.get("rope_type", entries.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise CheckpointError(f"RoPE type {kind!r} is not supported; supported are {', '.join(ROPE_TYPES)}")
    partial = entries.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise CheckpointError(f"partial_rotary_factor {partial} is not supported; only 1.0 is")
    theta = float(entries.get("rope_theta", config.get("rope_theta", 10_000.0)))
    if kind in ("default", "dynamic"):
        return Rope(theta=theta)
    original = entries.get("original_max_position_embeddings")
    if original is None:
        original = config.get("original_max_position_embeddings") or context
    factor = entries.get("factor")
    if factor is None and kind == "yarn":
        factor = context / original
    if not isinstance(factor, int | float) or factor <= 0:
        raise CheckpointError(f"RoPE type {kind!r} needs a positive factor, not {factor!r}")
    return Rope(
        theta=theta,
        kind=kind,
        factor=float(factor),
        original_context=int(original),
        low_freq_factor=float(entries.get("low_freq_factor", 1.0)),
        high_freq_factor=float(entries.get("high_freq_factor", 4.0)),
        beta_fast=float(entries.get("beta_fast") or 32.0),
        beta_slow=float(entries.get("beta_slow") or 1.0),
        truncate=bool(entries.get("truncate", True)),
        attention_factor=_attention_factor(entries, factor) if kind == "yarn" else 1.0,
    )


def _attention_factor(entries: Mapping[str, Any], factor: float) -> float:
    """YaRN's temperature on the attention scores (arXiv 2309.00071, equation 22), DeepSeek's mscale pair included."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    explicit = entries.get("attention_factor")
    if explicit is not None:
        return float(explicit)
    above, below = entries.get("mscale"), entries.get("mscale_all_dim")
    return scale(above) / scale(below) if above and below else scale(1.0)
