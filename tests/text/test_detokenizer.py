"""Streamed text (field failures 42 and 47): parts join to the final text, and no character is ever cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import toy_tokenizers

from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.text import IncrementalDetokenizer, Tokenizer

FAMILY = "👨‍👩‍👧‍👦"
HARD_TEXTS = (
    "plain ascii, with  two spaces",
    "日本語と中文と한국어",
    f"{FAMILY}{FAMILY} flags 🇫🇷🇯🇵 skin 👍🏽 heart ❤️‍🔥",
    "é e\u0301 naïve café",
    "مرحبا привет Μίλησέ भारत",
    " leading and trailing ",
    "\n\t mixed \r\n",
    "a\u2581b literal block",
    "\U0010ffff\u0000\u200d",
)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(toy_tokenizers.save(toy_tokenizers.byte_level(), tmp_path_factory.mktemp("byte")))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(toy_tokenizers.save(toy_tokenizers.sentencepiece(), tmp_path_factory.mktemp("spm")))


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return Tokenizer.load(resolve_checkpoint("smollm2-135m-instruct"))


def _stream(tokenizer: Tokenizer, ids: list[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens)
    return [*(detokenizer.push(index) for index in ids), detokenizer.flush()]


def _byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """One token per byte: every character is split at each of its bytes."""
    single = {tokenizer.token_bytes(index): index for index in range(tokenizer.vocabulary - 1, -1, -1)}
    return [single[bytes([byte])] for byte in data]


def _check_parts(text: str, parts: list[str]) -> None:
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_every_byte_its_own_token(byte_level: Tokenizer, text: str) -> None:
    ids = _byte_ids(byte_level, text.encode())
    parts = _stream(byte_level, ids)
    _check_parts(text, parts)
    ends = [len(text[:count].encode()) for count in range(1, len(text) + 1)]
    shown_at = [index + 1 for index, part in enumerate(parts) if part]
    assert shown_at == ends  # each character appears with its last byte, neither earlier nor later


@pytest.mark.parametrize("text", HARD_TEXTS)
@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_encoded_text_comes_back(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    if kind == "sentencepiece" and "\u2581" in text:
        text = text.replace("\u2581", "_")  # sentencepiece itself cannot tell this character from a space
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    _check_parts(text, _stream(tokenizer, ids))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(["byte_level", "sentencepiece"]), st.booleans())
def test_any_tokens_in_any_order(request: pytest.FixtureRequest, data: st.DataObject, kind: str, skip: bool) -> None:
    """Also malformed bytes, special tokens inside characters, and ids without a token."""
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary + 2), max_size=30))
    parts = _stream(tokenizer, ids, skip)
    final = tokenizer.decode(ids, skip)
    assert "".join(parts) == final
    shown = ""
    for part in parts:
        shown += part
        assert final.startswith(shown)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=24))
def test_malformed_bytes_are_shown_as_the_library_shows_them(byte_level: Tokenizer, data: bytes) -> None:
    ids = _byte_ids(byte_level, data)
    assert byte_level.decode(ids) == byte_level._backend.decode(ids) == data.decode(errors="replace")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_decode_equals_the_library_on_any_byte_level_tokens(byte_level: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocabulary - 1), max_size=30))
    for skip in (True, False):
        assert byte_level.decode(ids, skip) == byte_level._backend.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20))
def test_decode_equals_the_library_on_sentencepiece_texts(sentencepiece: Tokenizer, text: str) -> None:
    ids = sentencepiece.encode_prompt(text)
    assert sentencepiece.decode(ids) == sentencepiece._backend.decode(ids)


def test_malformed_byte_token_spoils_only_itself(sentencepiece: Tokenizer) -> None:
    """The library would turn the whole run of byte tokens into U+FFFD, also what a stream has shown already."""
    ids = _byte_ids(sentencepiece, "€".encode() + b"\xff")
    assert sentencepiece.decode(ids) == "€\ufffd"
    assert _stream(sentencepiece, ids) == ["", "", "€", "\ufffd", ""]


def test_leading_space_of_sentencepiece(sentencepiece: Tokenizer) -> None:
    hi, space = sentencepiece.encode("hi")[0], sentencepiece.encode("")
    assert space == []
    assert _stream(sentencepiece, [hi, hi]) == ["hi", " hi", ""]
    assert _stream(sentencepiece, [1, hi, hi]) == ["", "hi", " hi", ""]  # BOS is skipped, the space still dropped
    assert _stream(sentencepiece, [1, hi], skip_special_tokens=False) == ["<s>", " hi", ""]


def test_text_without_strip_keeps_its_space(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(toy_tokenizers.save(toy_tokenizers.sentencepiece(strip=False), tmp_path))
    ids = tokenizer.encode(" hi hi")
    assert "".join(_stream(tokenizer, ids)) == tokenizer.decode(ids) == " hi hi"


def test_output_that_breaks_off_inside_a_character(byte_level: Tokenizer) -> None:
    ids = _byte_ids(byte_level, "a🎉".encode()[:-1])
    assert _stream(byte_level, ids) == ["a", "", "", "", "\ufffd"]
    assert byte_level.decode(ids) == "a\ufffd"


def test_special_tokens_are_skipped_even_inside_a_character(byte_level: Tokenizer) -> None:
    first, *rest = _byte_ids(byte_level, "é".encode())
    ids = [first, 2, *rest]
    assert _stream(byte_level, ids) == ["", "", "é", ""]
    assert byte_level.decode(ids) == "é" == byte_level._backend.decode(ids)


def test_a_bare_replacement_character_is_text(byte_level: Tokenizer) -> None:
    assert _stream(byte_level, byte_level.encode("a\ufffdb"))[0] == "a"
    assert "".join(_stream(byte_level, byte_level.encode("a\ufffdb"))) == "a\ufffdb"


@pytest.mark.real
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_real_tokenizer_streams_hard_texts(real: Tokenizer, text: str) -> None:
    for ids in (real.encode(text), _byte_ids(real, text.encode())):
        assert real.decode(ids) == text == real._backend.decode(ids)
        _check_parts(text, _stream(real, ids))


@pytest.mark.real
def test_real_tokenizer_every_single_token_equals_the_library(real: Tokenizer) -> None:
    ids = range(real.vocabulary)
    for skip in (True, False):
        library = real._backend.decode_batch([[index] for index in ids], skip_special_tokens=skip)
        assert [real.decode([index], skip) for index in ids] == library
