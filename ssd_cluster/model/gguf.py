"""GGUF files as checkpoints: metadata becomes a Hugging Face configuration, tensors are dequantised and renamed.

Formats and names as written by llama.cpp's converter. For the llama architecture that converter interleaves the rows of
the q and k projections (its rotary embedding rotates neighbours); the rows are put back here. Qwen2 and Qwen3 are not
permuted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import Checkpoint, Cut
from ssd_cluster.model.rope_factors import llama3_scaling

_FAMILY = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}
_ARCHITECTURE = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_PERMUTED = ("llama", "mistral")
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FACTORS = "rope_freqs.weight"

# Tokens that end a turn in the chat formats of the supported families; llama.cpp stops at each of them.
_END_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>")
_CONTROL = 3


class GgufFile:
    """Metadata and raw tensors of one file.

    Raises:
        CheckpointError: the file is missing, truncated or no GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.reader = gguf.GGUFReader(str(path))
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except Exception as error:  # the reader indexes past the end of a truncated file in several ways
            raise CheckpointError(f"{path} is truncated or no GGUF file ({error}); fetch it again") from error

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value as a Python object, or ``default``."""
        field = self.reader.fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        """A metadata value that must be there.

        Raises:
            CheckpointError: it is not.
        """
        value = self.get(key)
        if value is None:
            raise CheckpointError(f"{self.path}: metadata key {key} is missing; convert the model again")
        return value

    @property
    def architecture(self) -> str:
        return str(self.require("general.architecture"))

    @cached_property
    def by_name(self) -> dict[str, Any]:
        return {tensor.name: tensor for tensor in self.reader.tensors}

    def tensor(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """One tensor, dequantised to float32, shape [rows, columns].

        Raises:
            CheckpointError: its quantisation cannot be undone by the gguf library.
        """
        tensor = self.by_name[name]
        try:
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            kind = tensor.tensor_type.name
            raise CheckpointError(f"{self.path}: {name} ({kind}) cannot be dequantised: {error}") from error
        return np.array(values, dtype=np.float32)


class GgufCheckpoint(Checkpoint):
    """A .gguf file of architecture llama (Mistral included), qwen2 or qwen3."""

    def __init__(self, path: Path) -> None:
        self.file = GgufFile(path)
        super().__init__(path, config_from_gguf(self.file), generation_from_gguf(self.file))
        self._source: dict[str, str] = {}
        for source in self.file.by_name:
            name = hf_name(source)
            if name is not None:
                self._source[name] = source
            elif source != _ROPE_FACTORS:
                raise CheckpointError(f"{path}: tensor {source} is of a kind that the decoder does not know")

    def names(self) -> list[str]:
        return list(self._source)

    def weight_files(self) -> list[Path]:
        return [self.path]

    def tensors(self, cut: Cut | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        permuted = self.file.architecture in _PERMUTED
        heads = {"q_proj": self.config["num_attention_heads"], "k_proj": self.config["num_key_value_heads"]}
        for name, source in self._source.items():
            values = self.file.tensor(source)
            part = name.split(".")[-2]
            if permuted and part in heads:
                values = unpermute(values, heads[part])
            tensor = torch.from_numpy(values)
            wanted = None if cut is None else cut(name, tuple(tensor.shape))
            if cut is None:
                yield name, tensor
            elif wanted is not None:
                yield name, tensor[wanted]


def hf_name(name: str) -> str | None:
    """llama.cpp's tensor name -> Hugging Face's; None for tensors that are not weights of the decoder."""
    if match := _BLOCK_NAME.fullmatch(name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_BLOCK[part]}.{kind}" if part in _BLOCK else None
    part, _, kind = name.rpartition(".")
    return f"{_TOP[part]}.{kind}" if part in _TOP else None


def unpermute(values: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a q or k projection (or its bias) from interleaved order back to two halves per head."""
    per_head = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(per_head.swapaxes(1, 2).reshape(values.shape))


def config_from_gguf(file: GgufFile) -> dict[str, Any]:
    """The configuration in Hugging Face's form.

    Raises:
        CheckpointError: unsupported architecture, or metadata is missing.
    """
    arch = file.architecture
    if arch not in _FAMILY:
        known = ", ".join(_FAMILY)
        raise CheckpointError(f"{file.path}: GGUF architecture {arch!r} is not supported; supported are {known}")
    if file.get(f"{arch}.expert_count"):
        raise CheckpointError(f"{file.path}: mixture-of-experts models are not supported")
    if "token_embd.weight" not in file.by_name:
        raise CheckpointError(f"{file.path}: tensor token_embd.weight is missing; fetch the file again")
    heads = int(file.require(f"{arch}.attention.head_count"))
    hidden = int(file.require(f"{arch}.embedding_length"))
    config: dict[str, Any] = {
        "model_type": _FAMILY[arch],
        "architectures": [_ARCHITECTURE[arch]],
        "hidden_size": hidden,
        "intermediate_size": int(file.require(f"{arch}.feed_forward_length")),
        "num_hidden_layers": int(file.require(f"{arch}.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.get(f"{arch}.attention.head_count_kv", heads)),
        "head_dim": int(file.get(f"{arch}.attention.key_length") or hidden // heads),
        "hidden_act": "silu",
        "max_position_embeddings": int(file.require(f"{arch}.context_length")),
        "rms_norm_eps": float(np.float32(file.require(f"{arch}.attention.layer_norm_rms_epsilon"))),
        "rope_theta": float(file.get(f"{arch}.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(file, arch),
        "vocab_size": int(file.by_name["token_embd.weight"].shape[-1]),
        "tie_word_embeddings": "output.weight" not in file.by_name,
        "attention_bias": arch != "qwen2" and "blk.0.attn_q.bias" in file.by_name,
        "mlp_bias": ("blk.0.ffn_up.bias" in file.by_name) or None,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }
    config["rms_norm_eps"] = float(f"{config['rms_norm_eps']:.6g}")  # stored as float32: 9.99999975e-06 means 1e-05
    return {key: value for key, value in config.items() if value is not None}


def _rope_scaling(file: GgufFile, arch: str) -> dict[str, Any] | None:
    """rope_scaling of config.json, from scaling keys or from stored frequency factors."""
    theta = float(file.get(f"{arch}.rope.freq_base", 10000.0))
    if _ROPE_FACTORS in file.by_name:
        return llama3_scaling(file.tensor(_ROPE_FACTORS).reshape(-1), theta, str(file.path))
    kind = file.get(f"{arch}.rope.scaling.type")
    if kind in (None, "none"):
        return None
    factor = float(file.require(f"{arch}.rope.scaling.factor"))
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    original = file.get(f"{arch}.rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = int(original)
    return scaling


def generation_from_gguf(file: GgufFile) -> dict[str, Any]:
    """generation_config.json: every token that ends a turn, the declared one first."""
    declared = [file.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    tokens = file.get("tokenizer.ggml.tokens") or []
    types = file.get("tokenizer.ggml.token_type") or [_CONTROL] * len(tokens)
    ids = {token: index for index, token in enumerate(tokens) if types[index] == _CONTROL}
    found = [*declared, *(ids.get(token) for token in _END_TOKENS)]
    eos = list(dict.fromkeys(int(value) for value in found if value is not None))
    generation = {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": eos or None,
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in generation.items() if value is not None}
