"""Text of a growing list of tokens, character by character as they complete."""

from __future__ import annotations

import codecs

from ssd_cluster.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns tokens into text one by one; all parts joined equal ``tokenizer.decode`` of all tokens.

    A character whose bytes are spread over several tokens appears with the last of them. Constant time per token.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._table = tokenizer.pieces.table
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.pieces.strips_space

    def push(self, token_id: int) -> str:
        """Text that this token completes, often one word, maybe nothing."""
        if token_id in self._skipped or not 0 <= token_id < len(self._table):
            return ""
        return self._stripped(self._decoder.decode(self._table[token_id]))

    def flush(self) -> str:
        """The rest at the end of the output: U+FFFD if it broke off inside a character, else nothing."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if not self._strip or not text:
            return text
        self._strip = False
        return text[1:] if text.startswith(" ") else text
