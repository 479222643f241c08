"""The tokenizer inside a GGUF file, rebuilt as a fast tokenizer.

GGUF names a pre-tokenizer instead of describing it; how the named ones split text is stated here. A name that is not
listed is refused: a wrong split gives other tokens without any error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.gguf import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\u2581"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = "|".join((_CONTRACTIONS, _WORDS, r"\p{N}{1,3}", _REST))
_QWEN2_SPLIT = "|".join((_CONTRACTIONS, _WORDS, r"\p{N}", _REST))


def _byte_level(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), _byte_level(use_regex=False)])


def _pre_tokenizer(name: str, where: str) -> Any:
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level(use_regex=True)])
    if name == "gpt-2":
        return _byte_level(use_regex=True)
    if name == "llama-bpe":
        return _split(_LLAMA3_SPLIT)
    if name == "qwen2":
        return _split(_QWEN2_SPLIT)
    raise CheckpointError(
        f"{where}: pre-tokenizer {name!r} is not supported (supported: smollm, gpt-2, llama-bpe, qwen2); "
        "use the model's Hugging Face folder"
    )


def tokenizer_from_gguf(file: GgufFile) -> PreTrainedTokenizerFast:
    """The tokenizer with its special tokens and chat template.

    Raises:
        CheckpointError: the metadata lack a tokenizer or describe one that is not supported.
    """
    from transformers import PreTrainedTokenizerFast

    kind = file.require("tokenizer.ggml.model")
    tokens: list[str] = file.require("tokenizer.ggml.tokens")
    if kind == "gpt2":
        tokenizer = _byte_level_bpe(file, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece_bpe(file, tokens)
    else:
        raise CheckpointError(f"{file.path}: tokenizer model {kind!r} is not supported; use the Hugging Face folder")
    types = file.get("tokenizer.ggml.token_type") or []
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in (_CONTROL, _UNKNOWN):
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif token_type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    if _adds_bos(file, kind):
        bos = tokens[file.require("tokenizer.ggml.bos_token_id")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: file.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=file.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        model_max_length=int(file.require(f"{file.architecture}.context_length")),
        **{name: tokens[index] for name, index in ids.items() if index is not None},
    )


def _adds_bos(file: GgufFile, kind: str) -> bool:
    """llama.cpp's default where the file does not say."""
    default = kind == "llama" or file.get("tokenizer.ggml.pre") == "llama-bpe"
    return bool(file.get("tokenizer.ggml.add_bos_token", default))


def _byte_level_bpe(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = str(file.require("tokenizer.ggml.pre"))
    merges = [tuple(merge.split(" ")) for merge in file.require("tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, str(file.path))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece_bpe(file: GgufFile, tokens: list[str]) -> Tokenizer:
    """Llama 2 style: merges follow from the scores, unknown characters become byte tokens."""
    vocab = {token: index for index, token in enumerate(tokens)}
    merges = merges_from_scores(vocab, file.require("tokenizer.ggml.scores"))
    unknown = tokens[file.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    replace = normalizers.Replace(" ", _SPACE)
    if file.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = replace
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_from_scores(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Pairs of tokens whose union is a token, the union with the highest score first."""
    found: list[tuple[float, tuple[str, str]]] = []
    for token, index in vocab.items():
        splits = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [(left, right) for left, right in splits if left in vocab and right in vocab]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found.extend((scores[index], pair) for pair in pairs)
    found.sort(key=lambda entry: entry[0], reverse=True)
    return [pair for _, pair in found]
