"""Tokenizer: EOS sets (field failure 12), vocabulary size (41), comparison of a pair (42), chats, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import toy_tokenizers
from support.tiny import make_checkpoint
from tokenizers import AddedToken

from ssd_cluster.errors import CheckpointError, InvalidRequest
from ssd_cluster.model.checkpoint import resolve_checkpoint
from ssd_cluster.text import Tokenizer, compare, remarks

DEFAULT_SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    return Tokenizer.load(resolve_checkpoint("smollm2-135m-instruct"))


def _load(folder: Path, **options: object) -> Tokenizer:
    return Tokenizer.load(toy_tokenizers.save(toy_tokenizers.byte_level(), folder, **options))  # type: ignore[arg-type]


def test_eos_ids_come_from_three_places_in_order(tmp_path: Path) -> None:
    assert _load(tmp_path / "a", generation_eos=[0, 2], eos=5, names={"eos_token": "<|im_start|>"}).eos_ids == (
        0,
        2,
        5,
        1,
    )
    assert _load(tmp_path / "b", generation_eos=[2], eos=2, names={"eos_token": "<|im_end|>"}).eos_ids == (2,)
    assert _load(tmp_path / "c", eos=[2, 0]).eos_ids == (2, 0)
    assert _load(tmp_path / "d").eos_ids == ()


def test_vocabulary_counts_added_tokens_and_ignores_padding(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path / "a")
    assert tokenizer.vocabulary == tokenizer._backend.get_vocab_size(with_added_tokens=True)
    assert tokenizer.token(tokenizer.vocabulary - 1) == "<tool é>"
    padded = Tokenizer.load(make_checkpoint(tmp_path / "padded", vocab=384))
    exact = Tokenizer.load(make_checkpoint(tmp_path / "exact", vocab=320))
    assert padded.vocabulary == exact.vocabulary == 320  # rows of the output layer beyond it are padding
    assert compare(padded, exact) is None
    assert padded.hash == exact.hash
    assert padded.token_bytes(383) == b""
    assert padded.decode([383, 320]) == ""


def test_compare_names_the_first_difference(tmp_path: Path) -> None:
    base = toy_tokenizers.byte_level()
    a = Tokenizer.load(toy_tokenizers.save(base, tmp_path / "a"))
    longer = toy_tokenizers.byte_level()
    longer.add_tokens(["extra"])
    special = toy_tokenizers.byte_level()
    special.add_special_tokens([AddedToken("<tool é>", special=True)])
    fewer = toy_tokenizers.byte_level(merges=40)
    cases = {
        "longer": (longer, f"knows {a.vocabulary} ids and the second {a.vocabulary + 1}"),
        "special": (special, "('<tool é>') is a special token only in the second tokenizer"),
        "fewer": (fewer, "token id 299 is "),
    }
    for name, (other, message) in cases.items():
        b = Tokenizer.load(toy_tokenizers.save(other, tmp_path / name))
        assert message in str(compare(a, b)), name
        assert a.hash != b.hash, name
    again = Tokenizer.load(toy_tokenizers.save(toy_tokenizers.byte_level(), tmp_path / "again"))
    assert compare(a, again) is None
    assert a.hash == again.hash


def test_compare_of_swapped_ids(tmp_path: Path) -> None:
    folder = toy_tokenizers.save(toy_tokenizers.byte_level(), tmp_path / "a")
    a = Tokenizer.load(folder)
    data = json.loads((folder / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    vocab["A"], vocab["B"] = vocab["B"], vocab["A"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    b = Tokenizer.load(folder)
    index = a.encode("A")[0]
    assert compare(a, b) == f"token id {index} is 'A' in the first and 'B' in the second tokenizer"
    assert a.hash != b.hash


def test_other_eos_or_bos_is_remarked_but_does_not_make_a_mismatch(tmp_path: Path) -> None:
    a = _load(tmp_path / "a", eos=2)
    b = _load(tmp_path / "b", eos=[0, 2])
    assert compare(a, b) is None
    assert a.hash == b.hash
    assert remarks(a, b) == ["the first ends texts with ids [2], the second with [0, 2]"]
    assert remarks(a, a) == []
    c = Tokenizer.load(toy_tokenizers.save(toy_tokenizers.sentencepiece(), tmp_path / "c", eos=2))
    assert any("begins prompts" in remark for remark in remarks(a, c))


def test_length_limits_and_padding_of_the_file_do_not_apply(tmp_path: Path) -> None:
    backend = toy_tokenizers.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    tokenizer = Tokenizer.load(toy_tokenizers.save(backend, tmp_path))
    text = "0123456789" * 3
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("01")) == 2


def test_bos_only_where_the_tokenizer_adds_it(tmp_path: Path) -> None:
    spm = Tokenizer.load(toy_tokenizers.save(toy_tokenizers.sentencepiece(), tmp_path / "spm"))
    assert spm.encode_prompt("hi") == [1, *spm.encode("hi")]
    byte = _load(tmp_path / "byte", names={"bos_token": "<|im_start|>"})
    assert byte.encode_prompt("hi") == byte.encode("hi")
    assert byte.bos_id == 1


def test_chat_template(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(make_checkpoint(tmp_path / "tiny"))
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "a guess"}])
    text = "<|im_start|>user\na guess<|im_end|>\n<|im_start|>assistant\n"
    assert ids == tokenizer.encode(text)
    assert ids[0] == 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_chat_template_errors_are_the_clients(tmp_path: Path) -> None:
    strict = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('must begin with user') }}{% endif %}"
    tokenizer = _load(tmp_path / "strict", chat_template=strict)
    with pytest.raises(InvalidRequest, match="must begin with user") as caught:
        tokenizer.apply_chat_template([{"role": "assistant", "content": "hi"}])
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match="must not be empty"):
        tokenizer.apply_chat_template([])
    with pytest.raises(InvalidRequest, match="no chat template"):
        _load(tmp_path / "none").apply_chat_template([{"role": "user", "content": "hi"}])
    tiny = Tokenizer.load(make_checkpoint(tmp_path / "tiny"))
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        tiny.apply_chat_template([{"role": "user", "content": None}])


def test_lone_surrogates_are_refused(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path)
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        tokenizer.encode("a\ud800b")


def test_missing_damaged_and_foreign_tokenizers(tmp_path: Path) -> None:
    folder = toy_tokenizers.save(toy_tokenizers.byte_level(), tmp_path / "a")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        Tokenizer.load(folder)
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    words = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="decodes with WordPiece"):
        Tokenizer.load(toy_tokenizers.save(words, tmp_path / "words"))


@pytest.mark.real
def test_real_tokenizer_is_smollm2s(real: Tokenizer) -> None:
    assert real.vocabulary == 49152
    assert set(real.eos_ids) == {0, 2}
    assert [real.token(index) for index in (0, 1, 2)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert real.special_ids == frozenset(range(17))
    assert real.render_chat([{"role": "user", "content": "hi"}]) == DEFAULT_SYSTEM
    assert real.apply_chat_template([{"role": "user", "content": "hi"}])[:3] == [1, 9690, 198]
    own = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert real.render_chat(own).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi")
    assert [real.token(index) for index in real.encode("a 2024")] == ["a", "Ġ", "2", "0", "2", "4"]
    assert real.encode_prompt("hi") == real.encode("hi")
