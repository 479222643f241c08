"""Small hand-made tokenizers: byte-level, sentencepiece with byte fallback, and one with multi-byte pieces."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "hello hello world world",
    "日本語 日本語 日本の本",
    "🎉🎉 naïve café",
    "👨‍👩‍👧‍👦 family",
    "привет привет",
)


def byte_level(merges: int = 60) -> Tokenizer:
    """Byte-level BPE whose merges end inside characters as often as at their ends."""
    from tokenizers import trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIALS) + 256 + merges,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<tool é>", special=False, normalized=False)])
    return tokenizer


def sentencepiece(strip: bool = True) -> Tokenizer:
    """Llama 2 style: "▁" for a space, byte tokens for unknown characters, BOS in front."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "c", "h", "i", "▁a", "▁ab", "▁hi", "本", "é"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁a", "b"), ("▁", "hi")]
    vocab["hi"] = len(vocab)
    merges.insert(0, ("h", "i"))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if strip else replace
    if strip:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in pieces[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def save(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    eos: int | list[int] | None = None,
    generation_eos: int | list[int] | None = None,
    names: dict[str, str] | None = None,
    chat_template: str | None = None,
) -> Path:
    """Write a folder that holds a tokenizer and configurations, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **(names or {})}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": eos}))
    if generation_eos is not None:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    return folder
