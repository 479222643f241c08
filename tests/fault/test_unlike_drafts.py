"""Real drafts that differ from their target: shorter context, little memory, other end tokens, other padding or number
format, other tokenizer. The text is the target's own; a draft that cannot serve is done without.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.engine_pair import SteppedPair, draft_settings, stats
from support.equality import assert_same
from support.target_rig import Client, Rig, request, run
from support.tiny import make_checkpoint, perturb

from ssd_cluster.config import DType
from ssd_cluster.link.messages import NackCode
from ssd_cluster.target.replica import ReplicaState
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import FinishReason, Mode

NOISE = 0.02


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("unlike") / "target")


@pytest.fixture(scope="module")
def draft(target: Path) -> Path:
    return perturb(target, target.parent / "draft", NOISE)


@pytest.fixture(scope="module")
def rig(target: Path) -> Rig:
    return Rig.load(target)


def ask(name: str, start: int, n: int, **params: Any) -> GenerationRequest:
    """A request of ``n`` prompt tokens."""
    return request(name, [5 + (start + i) % 290 for i in range(n)], **({"max_tokens": 40, "ignore_eos": True} | params))


def plain(rig: Rig, requests: list[GenerationRequest]) -> list[Client]:
    return run(rig.engine(Mode.AR), requests)


def refusals(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if event in record.getMessage()]


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_prompt_beyond_the_drafts_context_is_decoded_plainly(
    rig: Rig, draft: Path, caplog: pytest.LogCaptureFixture
) -> None:
    requests = [ask("long", 0, 100), ask("longer", 9, 130), ask("short", 50, 12), ask("crosses", 90, 40)]
    pair = SteppedPair(rig, draft_settings(draft, {"max_context": 64}))
    pair.connect()
    got = pair.run(requests)
    assert_same(rig, plain(rig, requests), got, "context of the draft")
    long, longer, short, crosses = map(stats, got)
    for one in (long, longer):
        assert one.num_draft_tokens == one.num_spec_steps == one.cache_hits == one.cache_misses == 0
    assert short.num_accepted_draft_tokens > 0
    assert crosses.num_accepted_draft_tokens > 0, "up to its limit the draft is used"
    assert pair.value("ssd:draft_failures_total", reason=NackCode.TOO_LONG.value) == 3
    assert len(refusals(caplog, "draft_session_refused")) == 1
    assert pair.engine.healthy()
    pair.close()


def test_a_draft_without_memory_refuses_sessions_and_serves_on(rig: Rig, draft: Path) -> None:
    requests = [ask(f"r{i}", 40 * i, 35, temperature=0.8, seed=i) for i in range(4)]
    now = [0.0]
    settings = draft_settings(draft, {"kv_tokens": 64, "prefix_cache": False}, row_credit=8)
    pair = SteppedPair(rig, settings, clock=lambda: now[0])
    pair.connect()
    got = pair.run(requests)
    assert_same(rig, plain(rig, requests), got, "memory of the draft")
    codes = (NackCode.BUSY, NackCode.EVICTED, NackCode.TOO_LONG)
    assert sum(pair.value("ssd:draft_failures_total", reason=code.value) for code in codes) >= 3
    again = [ask("again", 3, 20)]
    now[0] = 1000.0  # whatever pause a refusal asked for is over
    (after,) = pair.run(again)
    assert_same(rig, plain(rig, again), [after], "after the refusals")
    assert stats(after).num_accepted_draft_tokens > 0
    pair.close()


def test_end_tokens_are_the_targets_and_not_the_drafts(tmp_path: Path, rig: Rig) -> None:
    free = ask("free", 0, 25, temperature=0)
    said = plain(rig, [free])[0].choices[0].token_ids
    at = next(i for i in range(9, len(said)) if said[i] not in said[:i])
    early = next(token for token in said[2:at] if token != said[at])
    target = make_checkpoint(tmp_path / "target", eos=(said[at], 2))
    draft = perturb(target, tmp_path / "draft", NOISE)
    for name in ("config.json", "generation_config.json"):
        edit(draft / name, eos_token_id=early)
    own = Rig.load(target)
    pair = SteppedPair(own, draft_settings(draft))
    pair.connect()
    (got,) = pair.run([ask("r", 0, 25, temperature=0, ignore_eos=False)])
    choice = got.choices[0]
    assert choice.token_ids == said[: at + 1]
    assert choice.text == own.tokenizer.decode(said[:at])
    assert (choice.reason, choice.stop_reason) == (FinishReason.STOP, None)
    assert got.finished is not None
    assert got.finished.completion_tokens == at + 1
    assert stats(got).num_accepted_draft_tokens > 0
    pair.close()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_of_either_output_layer_is_never_said_and_no_mismatch(tmp_path: Path, temperature: float) -> None:
    padded = make_checkpoint(tmp_path / "padded", vocab=384)
    exact = cut_vocabulary(perturb(padded, tmp_path / "exact", NOISE), 320)
    requests = [ask(f"r{i}", 30 * i, 20, temperature=temperature, seed=i) for i in range(3)]
    for target, draft in ((padded, exact), (exact, padded)):
        own = Rig.load(target)
        assert own.tokenizer.vocabulary == 320
        pair = SteppedPair(own, draft_settings(draft))
        pair.connect()
        got = pair.run(requests)
        assert_same(own, plain(own, requests), got, f"padding at {temperature}")
        assert all(token < 320 for client in got for token in client.choices[0].token_ids)
        assert sum(stats(client).num_accepted_draft_tokens for client in got) > 0
        pair.close()


def cut_vocabulary(checkpoint: Path, size: int) -> Path:
    """Cut the padding rows off the embedding and the output layer."""
    tensors = load_file(checkpoint / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:size].clone()
    save_file(tensors, checkpoint / "model.safetensors")
    edit(checkpoint / "config.json", vocab_size=size)
    return checkpoint


def test_a_draft_in_another_number_format(rig: Rig, draft: Path) -> None:
    requests = [ask(f"r{i}", 30 * i, 20, temperature=0.7, seed=i) for i in range(2)]
    pair = SteppedPair(rig, draft_settings(draft, {"dtype": DType.BFLOAT16}))
    pair.connect()
    got = pair.run(requests)
    assert_same(rig, plain(rig, requests), got, "bfloat16 draft")
    assert sum(stats(client).num_accepted_draft_tokens for client in got) > 0
    pair.close()


def test_a_draft_with_another_tokenizer_is_refused_and_done_without(
    rig: Rig, draft: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = perturb(draft, tmp_path / "stranger", 0.0)
    data = json.loads((stranger / "tokenizer.json").read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (stranger / "tokenizer.json").write_text(json.dumps(data))
    pair = SteppedPair(rig, draft_settings(stranger))
    with caplog.at_level(logging.ERROR):
        pair.connect(ReplicaState.REFUSED)
        got = pair.run([ask("r", 0, 20)])
    assert_same(rig, plain(rig, [ask("r", 0, 20)]), got, "another tokenizer")
    assert stats(got[0]).num_draft_tokens == 0
    (said,) = refusals(caplog, "draft_refused")
    assert "tokenizer hash differs" in said
    assert pair.value("ssd:draft_failures_total", reason="mismatch") == 1
    pair.close()
