"""Write tiny Hugging Face folders as GGUF files, the way llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

PERMUTED = ("llama", "mistral")
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# (token, score, type) of a small sentencepiece vocabulary: unknown, controls, every byte, then pieces.
SENTENCEPIECE: list[tuple[str, float, int]] = [
    ("<unk>", 0.0, 2),
    ("<s>", 0.0, 3),
    ("</s>", 0.0, 3),
    *((f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)),
    ("\u2581ab", -1.0, 1),
    ("ab", -2.0, 1),
    *((letter, -10.0 - rank, 1) for rank, letter in enumerate(("\u2581", "a", "b", "c", "f"))),
]


def gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permute(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Interleave the two halves of every head, row by row (written out, not by reshaping)."""
    size = values.shape[0] // heads
    out = np.empty_like(values)
    for head in range(heads):
        for pair in range(size // 2):
            out[head * size + 2 * pair] = values[head * size + pair]
            out[head * size + 2 * pair + 1] = values[head * size + size // 2 + pair]
    return out


def write_gguf(
    folder: Path,
    out: Path,
    *,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    rope_factors: np.ndarray[Any, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    architecture: str | None = None,
    pre: str = "gpt-2",
    sentencepiece: bool = False,
    tokenizer_flags: dict[str, bool] | None = None,
) -> Path:
    """Write ``folder`` (config.json, model.safetensors, tokenizer.json) as one GGUF file.

    ``metadata``: further keys, without the architecture in front; ``quantization`` applies to matrices.
    ``sentencepiece``: store the vocabulary ``SENTENCEPIECE`` instead of the folder's tokenizer.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = architecture or config["model_type"]
    writer = gguf.GGUFWriter(str(out), arch)
    _add_config(writer, config, metadata or {}, arch)
    if sentencepiece:
        _add_sentencepiece(writer)
    else:
        _add_tokenizer(writer, folder, pre)
    for key, value in (tokenizer_flags or {}).items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        part = name.split(".")[-2]
        if config["model_type"] in PERMUTED and part in heads:
            values = permute(values, heads[part])
        if values.ndim == 2 and quantization != gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), gguf.quantize(values, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(gguf_name(name), values)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any], metadata: dict[str, Any], arch: str) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    for key, value in metadata.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"{arch}.{key}", value)


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    vocab = dict(data["model"]["vocab"]) | {token["content"]: token["id"] for token in data["added_tokens"]}
    tokens = sorted(vocab, key=lambda token: vocab[token])
    special = {token["content"] for token in data["added_tokens"] if token["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in data["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    template = folder / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text())


def _add_sentencepiece(writer: gguf.GGUFWriter) -> None:
    tokens, scores, types = zip(*SENTENCEPIECE, strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(tokens))
    writer.add_token_scores(list(scores))
    writer.add_token_types(list(types))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
