"""Reading config.json: defaults of the families, both forms of RoPE, and refusals that name what is not supported."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.decoder_config import parse_config
from ssd_cluster.model.rope import Rope

BASE: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 320,
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def test_sizes_and_defaults() -> None:
    config = parse_config(BASE)
    assert (config.n_heads, config.n_kv_heads, config.head_dim, config.group) == (4, 2, 16, 2)
    assert config.rope == Rope(theta=10_000.0)
    assert not config.tied_head
    assert config.eos_ids == ()
    without = {name: value for name, value in BASE.items() if name != "num_key_value_heads"}
    assert parse_config(without).n_kv_heads == 4
    assert parse_config(BASE | {"model_type": "qwen3"}).head_dim == 128
    assert parse_config(BASE | {"model_type": "qwen3"}).qk_norm


def test_both_forms_of_rope_are_the_same() -> None:
    old = BASE | {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"type": "llama3"}}
    new = BASE | {"rope_parameters": LLAMA3 | {"rope_type": "llama3", "rope_theta": 5e5}}
    expected = Rope(5e5, "llama3", 8.0, 128, 1.0, 4.0)
    assert parse_config(old).rope == parse_config(new).rope == expected


def test_yarn_attention_factor() -> None:
    def factor(**entries: Any) -> float:
        scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128} | entries
        return parse_config(BASE | {"rope_scaling": scaling}).rope.attention_factor

    assert factor() == pytest.approx(1.1386294)
    assert factor(attention_factor=0.7) == 0.7
    assert factor(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert factor(factor=1.0) == 1.0


@pytest.mark.parametrize(
    ("family", "entries", "window"),
    [
        ("mistral", {"sliding_window": 100}, 100),
        ("mistral", {"sliding_window": None}, None),
        ("llama", {}, None),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": False}, None),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": True}, 100),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
        ("qwen3", {"sliding_window": 9, "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 9),
    ],
)
def test_sliding_window(family: str, entries: dict[str, Any], window: int | None) -> None:
    assert parse_config(BASE | {"model_type": family} | entries).sliding_window == window


def test_eos_ids_come_from_the_generation_config_first() -> None:
    config = BASE | {"eos_token_id": 2}
    assert parse_config(config).eos_ids == (2,)
    assert parse_config(config, {"eos_token_id": [7, 2]}).eos_ids == (7, 2)
    assert parse_config(config, {"eos_token_id": 0}).eos_ids == (0,)
    assert parse_config(config, {"eos_token_id": None}).eos_ids == (2,)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not supported; supported are llama"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised checkpoints"),
        ({"rope_scaling": {"type": "longrope", "factor": 2}}, "RoPE type 'longrope' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' needs a positive factor, not None"),
        ({"rope_scaling": {"type": "linear", "factor": "two"}}, "needs a positive factor, not 'two'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"head_dim": 15}, "head_dim must be even"),
        ({"vocab_size": None}, "vocab_size in config.json must be a positive integer, not None"),
        ({"hidden_size": "64"}, "hidden_size in config.json must be a positive integer, not '64'"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)
def test_refusals_name_the_reason(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse_config(BASE | entries)
