"""GGUF files: tensors, configuration and tokenizer come out as those of the Hugging Face folder they were made from."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import gguf_files
from support.gguf_files import SENTENCEPIECE, permute, write_gguf
from support.tiny import make_checkpoint

from ssd_cluster.errors import CheckpointError
from ssd_cluster.model.checkpoint import open_checkpoint
from ssd_cluster.model.gguf import hf_name, unpermute
from ssd_cluster.model.gguf_tokenizer import merges_from_scores
from ssd_cluster.model.rope_factors import llama3_factors, llama3_scaling
from ssd_cluster.text import Tokenizer, compare

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_round_trip_of_every_family(tmp_path: Path, family: str, tie: bool) -> None:
    folder = make_checkpoint(tmp_path / "tiny", family, tie=tie, heads=4, kv_heads=2, head_dim=32)
    checkpoint = open_checkpoint(write_gguf(folder, tmp_path / "tiny.gguf"))
    source = open_checkpoint(folder)
    read = dict(checkpoint.tensors())
    stored = load_file(folder / "model.safetensors")
    assert read.keys() == stored.keys()
    assert all(torch.equal(read[name], stored[name]) for name in stored)
    same = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
    same += ("num_key_value_heads", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta")
    same += ("tie_word_embeddings", "architectures")
    assert {key: checkpoint.config[key] for key in same} == {key: source.config[key] for key in same}


def test_permutation_is_undone_for_llama_and_absent_for_qwen(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert not np.array_equal(permute(values, 3), values)
    assert np.array_equal(unpermute(permute(values, 3), 3), values)
    bias = np.arange(12, dtype=np.float32)
    assert np.array_equal(unpermute(permute(bias, 3), 3), bias)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_quantised_tensors_are_near_the_originals(tmp_path: Path, kind: str) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    quantization = gguf.GGMLQuantizationType[kind]
    checkpoint = open_checkpoint(write_gguf(folder, tmp_path / "tiny.gguf", quantization=quantization))
    tolerance = {"Q8_0": 0.01, "Q4_1": 0.15, "F16": 0.001, "BF16": 0.01}[kind]
    stored = load_file(folder / "model.safetensors")
    for name, tensor in checkpoint.tensors():
        scale = stored[name].abs().max()
        assert tensor.dtype == torch.float32
        assert tensor.shape == stored[name].shape
        assert (tensor - stored[name]).abs().max() <= tolerance * scale, name


def test_llama3_rope_scaling_is_recovered_from_stored_factors(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny", head_dim=128, rope_theta=500_000.0)
    factors = llama3_factors(LLAMA3, 500_000.0, 64)
    path = write_gguf(folder, tmp_path / "tiny.gguf", rope_factors=factors)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["rope_scaling"] == {"rope_type": "llama3", **LLAMA3}
    assert "rope_freqs.weight" not in dict(checkpoint.tensors())


@pytest.mark.parametrize(("factor", "low", "high"), [(32.0, 1.0, 4.0), (8.0, 2.0, 6.0), (4.5, 1.0, 3.3)])
def test_recovered_parameters_give_the_same_frequencies(factor: float, low: float, high: float) -> None:
    truth = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    truth["original_max_position_embeddings"] = 8192
    factors = llama3_factors(truth, 500_000.0, 64)
    found = llama3_scaling(factors.astype(np.float32), 500_000.0, "test")
    assert np.allclose(llama3_factors(found, 500_000.0, 64), factors, rtol=1e-3)


def test_llama3_rule_is_transformers_rule() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500_000.0, **LLAMA3},
        max_position_embeddings=131_072,
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 500_000.0 ** (-torch.arange(64).double() / 64)
    assert np.allclose(plain / frequencies.double(), llama3_factors(LLAMA3, 500_000.0, 64), rtol=1e-5)


@pytest.mark.parametrize("factors", [np.linspace(1, 2, 64), np.ones(64), np.linspace(2, 1, 64)])
def test_factors_of_another_rule_are_refused(factors: np.ndarray) -> None:
    with pytest.raises(CheckpointError, match="safetensors"):
        llama3_scaling(factors.astype(np.float32), 500_000.0, "test")


def test_linear_and_yarn_scaling_keys(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    config = open_checkpoint(write_gguf(folder, tmp_path / "a.gguf", metadata=keys)).config
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 256}
    config = open_checkpoint(write_gguf(folder, tmp_path / "b.gguf", metadata=keys)).config
    assert config["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}


def test_broken_and_foreign_files_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    data = write_gguf(folder, tmp_path / "tiny.gguf").read_bytes()
    for keep in (0, 3, 20, 2000, len(data) // 2, len(data) - 64):
        (tmp_path / "cut.gguf").write_bytes(data[:keep])
        with pytest.raises(CheckpointError, match="fetch it again"):
            open_checkpoint(tmp_path / "cut.gguf")
    with pytest.raises(CheckpointError, match="missing"):
        open_checkpoint(tmp_path / "absent.gguf")
    other = write_gguf(folder, tmp_path / "other.gguf", architecture="gptj")
    with pytest.raises(CheckpointError, match="'gptj' is not supported"):
        open_checkpoint(other)
    experts = write_gguf(folder, tmp_path / "moe.gguf", metadata={"expert_count": 8})
    with pytest.raises(CheckpointError, match="mixture"):
        open_checkpoint(experts)


def test_biases_are_read_or_refused_but_never_dropped(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny", layers=1)
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    for part in "qkvo":
        rows = tensors[f"model.layers.0.self_attn.{part}_proj.weight"].shape[0]
        tensors[f"model.layers.0.self_attn.{part}_proj.bias"] = torch.arange(rows, dtype=torch.float32)
    save_file(tensors, weights)
    checkpoint = open_checkpoint(write_gguf(folder, tmp_path / "all.gguf"))
    assert checkpoint.config["attention_bias"] is True
    read = dict(checkpoint.tensors())
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)

    del tensors["model.layers.0.self_attn.o_proj.bias"]
    save_file(tensors, weights)
    with pytest.raises(CheckpointError, match=r"o_proj\.bias is missing"):
        open_checkpoint(write_gguf(folder, tmp_path / "some.gguf"))


def test_tensors_of_another_kind_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_checkpoint(tmp_path / "tiny", layers=1)
    monkeypatch.setitem(gguf_files.NAMES, "mlp.up_proj", "ffn_up_exps")
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up_exps\.weight is of a kind"):
        open_checkpoint(write_gguf(folder, tmp_path / "odd.gguf"))


def test_tokenizer_inside_equals_the_one_of_the_folder(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    ours, theirs = Tokenizer.load(write_gguf(folder, tmp_path / "tiny.gguf")), Tokenizer.load(folder)
    assert compare(ours, theirs) is None
    assert ours.eos_ids == (2, 0)  # the declared token, then every other token that ends a turn
    for text in (
        "the small model guesses",
        "  two  spaces\n\nand 12345",
        "naïve 日本語 👨‍👩‍👧",
        "<|im_start|>x<|im_end|>",
    ):
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text), skip_special_tokens=False) == text
    chat = [{"role": "user", "content": "a right guess"}]
    assert ours.apply_chat_template(chat) == theirs.apply_chat_template(chat)


def test_pre_tokenizers_split_as_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    text = "it's 12345  x"
    splits = {}
    for pre in ("smollm", "gpt-2", "llama-bpe", "qwen2"):
        tokenizer = Tokenizer.load(write_gguf(folder, tmp_path / f"{pre}.gguf", pre=pre))
        pieces = tokenizer._backend.pre_tokenizer.pre_tokenize_str(text)
        splits[pre] = [piece.replace("Ġ", " ") for piece, _ in pieces]
    assert splits["smollm"] == ["it", "'s", " ", "1", "2", "3", "4", "5", " ", " x"]
    assert splits["gpt-2"] == ["it", "'s", " 12345", " ", " x"]
    assert splits["llama-bpe"] == ["it", "'s", " ", "123", "45", " ", " x"]
    assert splits["qwen2"] == ["it", "'s", " ", "1", "2", "3", "4", "5", " ", " x"]
    with pytest.raises(CheckpointError, match="'unheard-of' is not supported"):
        Tokenizer.load(write_gguf(folder, tmp_path / "unheard.gguf", pre="unheard-of"))


def test_names_that_are_no_weights_are_skipped() -> None:
    assert hf_name("blk.3.attn_q.bias") == "model.layers.3.self_attn.q_proj.bias"
    assert hf_name("output_norm.weight") == "model.norm.weight"
    assert hf_name("rope_freqs.weight") is None
    assert hf_name("blk.0.ffn_gate_inp.weight") is None


def test_merges_follow_the_scores() -> None:
    vocab = {token: index for index, token in enumerate(["a", "b", "c", "ab", "bc", "abc"])}
    scores = [0.0, 0.0, 0.0, -2.0, -1.0, -3.0]
    assert merges_from_scores(vocab, scores) == [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")]


def test_sentencepiece_tokenizer(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    tokenizer = Tokenizer.load(write_gguf(folder, tmp_path / "tiny.gguf", sentencepiece=True))
    ids = {token: index for index, (token, _, _) in enumerate(SENTENCEPIECE)}
    word = [ids["\u2581ab"], ids["c"]]
    assert tokenizer.encode("abc") == word
    assert tokenizer.encode_prompt("abc") == [ids["<s>"], *word]  # the default of this kind of tokenizer
    assert tokenizer.encode("\u00e9") == [ids["\u2581"], ids["<0xC3>"], ids["<0xA9>"]]
    assert tokenizer.eos_ids == (ids["</s>"],)
    for text in ("abc abc", " abc", "caf\u00e9 \U0001f469\u200d\U0001f467", "a  b"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([ids["<s>"], *word]) == "abc"
    assert tokenizer.decode([ids["<s>"], *word], skip_special_tokens=False) == "<s> abc"


def test_sentencepiece_without_space_prefix_or_bos(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "tiny")
    flags = {"add_space_prefix": False, "add_bos_token": False}
    tokenizer = Tokenizer.load(write_gguf(folder, tmp_path / "tiny.gguf", sentencepiece=True, tokenizer_flags=flags))
    ids = {token: index for index, (token, _, _) in enumerate(SENTENCEPIECE)}
    assert tokenizer.encode_prompt("ab") == [ids["ab"]]
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
