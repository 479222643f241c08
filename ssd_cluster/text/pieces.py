"""What each token writes, as bytes.

Text is defined by bytes: the bytes of all tokens, joined and read as UTF-8, every malformed sequence shown as U+FFFD.
That makes the text of a stream independent of how it was cut into tokens. It equals what the tokenizers library
decodes, except that the library shows a whole run of byte tokens as U+FFFD when one of them is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from ssd_cluster.errors import CheckpointError

_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCEPIECE_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip"}


def byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest follows from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


class Pieces:
    """The bytes of every token id, read from the tokenizer's decoder.

    Attributes:
        table: [vocabulary] bytes; empty for ids without a token.
        strips_space: whether one space at the very start of a text is dropped (sentencepiece).
    """

    def __init__(self, tokens: Sequence[str | None], decoder: Any) -> None:
        """``tokens``: [vocabulary] token strings; ``decoder``: of the tokenizers library.

        Raises:
            CheckpointError: the decoder is of a kind that is not known here.
        """
        state = {} if decoder is None else json.loads(decoder.__getstate__())
        steps = state["decoders"] if state.get("type") == "Sequence" else [state]
        kinds = {step.get("type") for step in steps}
        self.strips_space = False
        if kinds - {"Fuse"} == {"ByteLevel"}:
            alphabet = byte_alphabet()
            self.table = [_byte_level(token, alphabet) for token in tokens]
        elif kinds <= _SENTENCEPIECE_STEPS and _replaces_space(steps):
            self.strips_space = _strips_space(steps)
            fallback = "ByteFallback" in kinds
            self.table = [_sentencepiece(token, fallback) for token in tokens]
        else:
            named = ", ".join(sorted(str(kind) for kind in kinds))
            raise CheckpointError(
                f"the tokenizer decodes with {named}; supported are byte-level and sentencepiece decoders"
            )


def _byte_level(token: str | None, alphabet: dict[str, int]) -> bytes:
    if token is None:
        return b""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()  # an added token outside the byte alphabet stands for itself


def _sentencepiece(token: str | None, fallback: bool) -> bytes:
    if token is None:
        return b""
    match = _BYTE_TOKEN.fullmatch(token) if fallback else None
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE, " ").encode()


def _replaces_space(steps: list[dict[str, Any]]) -> bool:
    replaced = [step for step in steps if step["type"] == "Replace"]
    return [(step["pattern"], step["content"]) for step in replaced] == [({"String": _SPACE}, " ")]


def _strips_space(steps: list[dict[str, Any]]) -> bool:
    strips = [(step["content"], step["start"], step["stop"]) for step in steps if step["type"] == "Strip"]
    if strips not in ([], [(" ", 1, 0)]):
        raise CheckpointError(f"the tokenizer's decoder strips {strips}; supported is one leading space")
    return bool(strips)
