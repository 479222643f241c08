"""Tiny random checkpoints in Hugging Face's layout, with a tokenizer: every room is tested without real weights.

``make_checkpoint`` writes a target; ``perturb`` writes a draft that resembles it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
LOGIT_SCALE = 4.0
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = (
    "the small model guesses what the large model will say and the large model checks every guess",
    "a right guess costs nothing and a wrong guess costs little",
    "once upon a time there was a river and the river ran to the sea",
)


def make_checkpoint(
    folder: Path,
    family: str = "llama",
    *,
    vocab: int = 320,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    intermediate: int | None = None,
    seed: int = 0,
    tie: bool = False,
    max_context: int = 512,
    eos: Sequence[int] = (EOS,),
    rope_theta: float = 10_000.0,
    rope_scaling: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer files; return ``folder``.

    The logits have a standard deviation of about ``LOGIT_SCALE``, so that some rows are sure and some are not.
    ``config`` overrides entries of config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size = head_dim or hidden // heads
    entries: dict[str, Any] = {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate or 2 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "max_position_embeddings": max_context,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "rope_theta": rope_theta,
        "rope_scaling": rope_scaling,
        "tie_word_embeddings": tie,
        "bos_token_id": 1,
        "eos_token_id": list(eos) if len(eos) > 1 else eos[0],
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if family == "mistral":
        entries["sliding_window"] = None
    entries |= config or {}
    tensors = random_tensors(family, entries, seed)
    save_file({name: tensor.to(dtype) for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(entries, indent=2))
    generation = {"bos_token_id": 1, "eos_token_id": entries["eos_token_id"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    write_tokenizer(folder, vocab, max_context)
    return folder


def random_tensors(family: str, config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """All weights of a model, Hugging Face names, float32; the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * scale

    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    unit = hidden**-0.5
    tensors = {"model.embed_tokens.weight": normal(config["vocab_size"], hidden, scale=unit)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for part, rows, scale in (("q", queries, 1.5), ("k", keys, 1.5), ("v", keys, 1.0)):
            tensors[f"{name}self_attn.{part}_proj.weight"] = normal(rows, hidden, scale=scale * unit)
            if family == "qwen2":
                tensors[f"{name}self_attn.{part}_proj.bias"] = normal(rows, scale=0.3)
        if family == "qwen3":
            for part in ("q", "k"):
                tensors[f"{name}self_attn.{part}_norm.weight"] = 1.2 + normal(size, scale=0.1)
        tensors[f"{name}self_attn.o_proj.weight"] = normal(hidden, queries, scale=queries**-0.5)
        for part in ("gate", "up"):
            tensors[f"{name}mlp.{part}_proj.weight"] = normal(inner, hidden, scale=1.5 * unit)
        tensors[f"{name}mlp.down_proj.weight"] = normal(hidden, inner, scale=inner**-0.5)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{name}{norm}.weight"] = 1 + normal(hidden, scale=0.1)
    tensors["model.norm.weight"] = LOGIT_SCALE * (1 + normal(hidden, scale=0.1))
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = normal(config["vocab_size"], hidden, scale=unit)
    return tensors


def perturb(checkpoint: Path, out: Path, noise: float = 0.04, seed: int = 1) -> Path:
    """Write a draft for ``checkpoint``: every matrix plus ``noise`` times its own spread of Gaussian noise.

    Share of positions where target and draft agree on the likeliest token, default sizes: 0.7 at noise 0.03, 0.55
    at 0.05, 0.3 at 0.1, 0.1 at 0.2.
    """
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(checkpoint / "model.safetensors")
    for name, tensor in sorted(tensors.items()):
        if tensor.dim() == 2:
            scale = noise * tensor.float().std()
            tensors[name] = (tensor.float() + scale * torch.randn(tensor.shape, generator=generator)).to(tensor.dtype)
    for file in checkpoint.iterdir():
        if file.name != "model.safetensors":
            shutil.copy(file, out / file.name)
    save_file(tensors, out / "model.safetensors")
    return out


def write_tokenizer(folder: Path, vocab: int, max_context: int) -> None:
    """Byte-level BPE with at most 320 ids; below 264 ids it knows only the specials and the commonest letters.

    Ids 0, 1, 2 are ``SPECIALS``: end of text, start of turn (BOS), end of turn (EOS). ``vocab`` above 320
    leaves padding ids at the end, as real checkpoints have.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab >= 264:
        tokenizer = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=min(vocab, 320),
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.train_from_iterator(CORPUS, trainer)
    else:
        letters = "Ġeationsrhldcumfpgwybvkxjqz.,"[: max(0, vocab - len(SPECIALS))]
        ids = {token: index for index, token in enumerate((*SPECIALS, *letters)) if index < vocab}
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS if token in ids])
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=SPECIALS[1],
        eos_token=SPECIALS[EOS],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_context,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
