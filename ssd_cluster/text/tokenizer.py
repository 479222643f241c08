"""Token ids of texts and chats, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssd_cluster.errors import CheckpointError, InvalidRequest
from ssd_cluster.model.checkpoint import read_json
from ssd_cluster.text.pieces import Pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Tokenizer:
    """A fast tokenizer of a checkpoint, used exactly as its tokenizer.json says. Safe to use from several threads.

    Attributes:
        eos_ids: ids that end a text: of generation_config.json, config.json and the tokenizer, in this order.
        bos_id: beginning-of-sequence id, if there is one.
        special_ids: ids that are not text.
        vocabulary: number of ids the tokenizer knows; the model's output layer may be padded beyond it.
    """

    def __init__(self, fast: PreTrainedTokenizerFast, eos_ids: Sequence[int]) -> None:
        self._fast = fast
        self._backend: Any = fast.backend_tokenizer
        self._backend.no_truncation()  # some tokenizer.json files carry a length limit or padding of their training
        self._backend.no_padding()
        ids: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        self.vocabulary = max(ids.values()) + 1
        self._tokens: list[str | None] = [None] * self.vocabulary
        for token, index in ids.items():
            self._tokens[index] = token
        added = self._backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        self.bos_id: int | None = fast.bos_token_id
        self.pieces = Pieces(self._tokens, self._backend.decoder)

    @classmethod
    def load(cls, checkpoint: Path) -> Tokenizer:
        """The tokenizer of a Hugging Face folder or a .gguf file.

        Raises:
            CheckpointError: there is none, or it is damaged or of an unsupported kind.
        """
        if checkpoint.suffix == ".gguf":
            fast, configs = _from_gguf(checkpoint)
        else:
            fast, configs = _from_folder(checkpoint)
        eos = [index for config in configs for index in _ids(config.get("eos_token_id"))]
        return cls(fast, [*eos, *_ids(fast.eos_token_id)])

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text; names of special tokens in it become their ids.

        Raises:
            InvalidRequest: the text holds lone surrogates, which no encoding of text can express.
        """
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(f"the text is not valid Unicode: {error}", param="prompt") from error

    def encode_prompt(self, text: str) -> list[int]:
        """Ids of a raw prompt, with BOS in front if the tokenizer of this model adds it."""
        return self.encode(text, add_special_tokens=True)

    def apply_chat_template(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        """Ids of a chat up to where the assistant speaks.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses these messages.
        """
        return self.encode(self.render_chat(messages))

    def render_chat(self, messages: Sequence[dict[str, Any]]) -> str:
        """The chat as the text that ``apply_chat_template`` encodes."""
        if not self._fast.chat_template:
            raise InvalidRequest("this model has no chat template; send a plain prompt", param="messages")
        if not messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        try:
            rendered = self._fast.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program; whatever it raises is about the messages
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return str(rendered)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of ids; ids that the tokenizer does not know write nothing."""
        data = b"".join(self.token_bytes(index) for index in ids if not self._skipped(index, skip_special_tokens))
        text = data.decode("utf-8", errors="replace")
        return text[1:] if self.pieces.strips_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """What one token writes; several tokens may make up one character."""
        return self.pieces.table[token_id] if 0 <= token_id < self.vocabulary else b""

    def token(self, token_id: int) -> str | None:
        """The token as the vocabulary spells it, None for an id without one."""
        return self._tokens[token_id] if 0 <= token_id < self.vocabulary else None

    def is_special(self, token_id: int) -> bool:
        return token_id in self.special_ids

    def _skipped(self, token_id: int, skip_special_tokens: bool) -> bool:
        return skip_special_tokens and token_id in self.special_ids

    @cached_property
    def hash(self) -> str:
        """Sixteen hex digits over every (id, token) and the special ids; equal exactly if ``compare`` finds nothing."""
        digest = hashlib.sha256()
        for index, token in enumerate(self._tokens):
            mark = "-" if token is None else f"{'s' if index in self.special_ids else 't'}{token}"
            data = mark.encode("utf-8", errors="surrogatepass")
            digest.update(len(data).to_bytes(4, "little") + data)
        return digest.hexdigest()[:16]


def compare(a: Tokenizer, b: Tokenizer) -> str | None:
    """The first way in which ids mean different things to ``a`` and ``b``, in words; None if they fit together."""
    for index in range(min(a.vocabulary, b.vocabulary)):
        if a.token(index) != b.token(index):
            return f"token id {index} is {a.token(index)!r} in the first and {b.token(index)!r} in the second tokenizer"
        if a.is_special(index) != b.is_special(index):
            which = "first" if a.is_special(index) else "second"
            return f"token id {index} ({a.token(index)!r}) is a special token only in the {which} tokenizer"
    if a.vocabulary != b.vocabulary:
        return f"the first tokenizer knows {a.vocabulary} ids and the second {b.vocabulary}"
    return None


def remarks(a: Tokenizer, b: Tokenizer) -> list[str]:
    """Differences that do not change what ids mean, but may tell that a pair was not made for each other."""
    found = []
    if set(a.eos_ids) != set(b.eos_ids):
        found.append(f"the first ends texts with ids {sorted(a.eos_ids)}, the second with {sorted(b.eos_ids)}")
    if a.bos_id != b.bos_id or a.encode_prompt("") != b.encode_prompt(""):
        found.append(f"the first begins prompts with ids {a.encode_prompt('')}, the second with {b.encode_prompt('')}")
    return found


def _ids(value: Any) -> Iterator[int]:
    """eos_token_id as it is written: absent, one id, or a list."""
    yield from (value if isinstance(value, list) else () if value is None else (int(value),))


def _from_gguf(path: Path) -> tuple[PreTrainedTokenizerFast, list[dict[str, Any]]]:
    from ssd_cluster.model.gguf import GgufFile, config_from_gguf, generation_from_gguf
    from ssd_cluster.model.gguf_tokenizer import tokenizer_from_gguf

    file = GgufFile(path)
    return tokenizer_from_gguf(file), [generation_from_gguf(file), config_from_gguf(file)]


def _from_folder(folder: Path) -> tuple[PreTrainedTokenizerFast, list[dict[str, Any]]]:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # With tokenizer.json the class named in tokenizer_config.json is bypassed: some of them replace parts of the file.
    loader = PreTrainedTokenizerFast if (folder / "tokenizer.json").exists() else AutoTokenizer
    if loader is AutoTokenizer and not (folder / "tokenizer.model").exists():
        raise CheckpointError(
            f"{folder} holds neither tokenizer.json nor tokenizer.model; fetch the tokenizer files too"
        )
    try:
        fast = loader.from_pretrained(str(folder), local_files_only=True)
        if not fast.is_fast:
            raise CheckpointError(f"the tokenizer in {folder} has no fast form; add a tokenizer.json")
    except CheckpointError:
        raise
    except Exception as error:  # the libraries raise bare Exception for a damaged file
        raise CheckpointError(f"the tokenizer in {folder} cannot be read ({error}); fetch its files again") from error
    names = ("generation_config.json", "config.json")
    return fast, [read_json(folder / name) for name in names if (folder / name).exists()]
