"""Losslessness as token equality: whatever drafts do, ``sd`` and ``ssd`` say what ``ar`` says (float32, tiny model).

Temperature 0, 0.7, 1 with top_p and top_k on; K 1..8; batch 1 and 4; cold and warm prefix; chunked and whole prefill;
preempted and resumed; several choices; drafts that are perfect, half right, garbage, stale, late, doubled, out
of order, dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support.equality import assert_same, naive
from support.scripted_draft import SCRIPTS, ScriptedDraft, Truth
from support.target_rig import Client, Rig, assert_clean, connect, learn, request, run
from support.tiny import make_checkpoint

from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import Mode

SPECULATIVE = [Mode.SD, Mode.SSD]
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
]
LOOP = [11, 12, 13, 14, 15] * 5


def batch(size: int = 4, **fields: Any) -> list[GenerationRequest]:
    """Requests that differ in prompt, length and sampling; the last prompt repeats itself."""
    prompts = [range(5, 45), range(60, 77), range(100, 163), LOOP]
    return [
        request(f"r{i}", prompts[i % 4], **({"seed": 50 + i, "max_tokens": 16 + 2 * i} | SAMPLING[i % 5] | fields))
        for i in range(size)
    ]


@dataclass
class World:
    """A tiny model, what it says, and drafts that know it."""

    rig: Rig
    truth: Truth
    known: dict[str, list[Client]]

    def plain(self, requests: Sequence[GenerationRequest], **settings: Any) -> list[Client]:
        """Outputs in mode ``ar``, computed once."""
        key = repr(requests)
        if key not in self.known:
            engine = self.rig.engine(Mode.AR, **settings)
            self.known[key] = run(engine, requests)
            learn(self.truth, self.known[key])
            assert_clean(engine)
        return self.known[key]

    def compare(
        self, mode: Mode, script: str, requests: Sequence[GenerationRequest], k: int, rounds: int = 1, **settings: Any
    ) -> None:
        """Run ``requests`` with a scripted draft, ``rounds`` times on one engine, and compare with plain decoding."""
        plain = self.plain(requests)
        draft = ScriptedDraft(SCRIPTS[script](self.truth, k))
        speculation = {"k": k, "wait_ms": 1.0} | settings.pop("speculation", {})
        engine = self.rig.engine(mode, [draft.connect], speculation=speculation, **settings)
        connect(engine)
        for _ in range(rounds):
            got = run(engine, requests)
            assert_same(self.rig, plain, got, f"{mode} {script} k={k} {settings}")
        assert_clean(engine, draft)
        engine.stop()
        check_bursts(script, got, k)


def check_bursts(script: str, clients: Sequence[Client], k: int) -> None:
    """The draft was really used: right ones are accepted, wrong ones are verified and rejected."""
    stats = [client.finished.speculation for client in clients if client.finished is not None]
    proposed, accepted = (
        sum(getattr(one, f"num_{kind}_tokens") for one in stats) for kind in ("draft", "accepted_draft")
    )
    if script == "perfect":
        assert accepted > 0
        assert max(len(delta.token_ids) for client in clients for delta in client.choices[0].deltas) == k + 1
    if script == "garbage":
        assert proposed > 5 * accepted
    if script == "half_right" and k > 2 and len(clients) > 1:
        assert 0 < accepted < proposed


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(Rig.load(make_checkpoint(tmp_path_factory.mktemp("matrix") / "tiny")), Truth(), {})


# --- plain decoding itself


def test_plain_decoding_equals_full_recomputation(world: World) -> None:
    for client in world.plain(batch(5, min_tokens=3)):
        assert client.choices[0].token_ids == naive(world.rig, client)


def test_greedy_plain_decoding_equals_transformers(world: World) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(world.rig.model.path, dtype=torch.float32)
    for client in world.plain(batch(4, temperature=0, top_k=0, top_p=1.0)):
        prompt = torch.tensor([client.request.prompt_token_ids])
        limit = client.request.params.max_tokens
        said = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=limit, do_sample=False)
        assert client.choices[0].token_ids == said[0, prompt.shape[1] :].tolist()


def test_plain_decoding_does_not_depend_on_batch_chunks_cache_or_preemption(world: World) -> None:
    requests = batch(5)
    plain = world.plain(requests)
    alone = [run(world.rig.engine(Mode.AR), [one])[0] for one in requests]
    assert_same(world.rig, plain, alone, "ar batch 1")
    for settings in ({"prefill_chunk": 7}, {"step_tokens": 9}, {"max_batch": 2}, {"blocks": 14}):
        engine = world.rig.engine(Mode.AR, **settings)
        for turn in range(2):
            assert_same(world.rig, plain, run(engine, requests), f"ar {settings} turn {turn}")
        preempted = engine.metrics.registry.get_sample_value("vllm:num_preemptions_total")
        assert bool(preempted) == ("blocks" in settings)
        assert_clean(engine)


# --- the matrix


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("mode", SPECULATIVE)
def test_every_draft_at_every_k_batch_4(world: World, mode: Mode, script: str) -> None:
    for k in range(1, 9):
        world.compare(mode, script, batch(), k)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("mode", SPECULATIVE)
def test_every_draft_with_every_sampling_batch_1(world: World, mode: Mode, script: str) -> None:
    for k, one in zip((3, 5, 2, 8, 4), batch(5), strict=True):
        world.compare(mode, script, [one], k)


@pytest.mark.parametrize("settings", [{}, {"prefill_chunk": 7}, {"step_tokens": 12}], ids=["whole", "chunked", "tight"])
@pytest.mark.parametrize("script", ["perfect", "half_right", "late", "reordered"])
@pytest.mark.parametrize("mode", SPECULATIVE)
def test_cold_and_warm_prefix_with_whole_and_chunked_prefill(
    world: World, mode: Mode, script: str, settings: dict[str, Any]
) -> None:
    world.compare(mode, script, batch(5), 4, rounds=2, **settings)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("mode", SPECULATIVE)
def test_preempted_and_resumed(world: World, mode: Mode, script: str) -> None:
    requests = [
        request(
            f"p{i}", range(5 + 20 * i, 15 + 20 * i), **({"seed": i, "max_tokens": 80, "ignore_eos": True} | sampling)
        )
        for i, sampling in enumerate(SAMPLING)
    ]
    plain = world.plain(requests)
    draft = ScriptedDraft(SCRIPTS[script](world.truth, 3))
    engine = world.rig.engine(mode, [draft.connect], blocks=14, speculation={"k": 4, "wait_ms": 1.0}, prefill_chunk=16)
    connect(engine)
    assert_same(world.rig, plain, run(engine, requests), f"{mode} {script} preempted")
    assert engine.metrics.registry.get_sample_value("vllm:num_preemptions_total")
    assert_clean(engine, draft)
    engine.stop()


@pytest.mark.parametrize("script", ["perfect", "half_right", "garbage", "stale"])
@pytest.mark.parametrize("mode", SPECULATIVE)
def test_several_choices_per_request(world: World, mode: Mode, script: str) -> None:
    world.compare(mode, script, batch(3, n=3, temperature=0.9), 4, rounds=2)


@pytest.mark.parametrize("policy", ["rule", "always_wait", "never_wait", "threshold"])
@pytest.mark.parametrize("fallback", ["ngram", "none"])
def test_every_way_to_deal_with_a_miss(world: World, policy: str, fallback: str) -> None:
    speculation = {"miss_policy": policy, "fallback": fallback}
    for script in ("half_right", "stale", "dead"):
        world.compare(Mode.SSD, script, batch(5), 4, speculation=speculation)


@pytest.mark.parametrize("mode", SPECULATIVE)
def test_without_any_draft(world: World, mode: Mode) -> None:
    for settings in ({"k": 4}, {"k": 0}, {"k": 4, "fallback": "none"}):
        engine = world.rig.engine(mode, speculation=settings)
        assert_same(world.rig, world.plain(batch(5)), run(engine, batch(5)), f"{mode} no draft {settings}")
        assert_clean(engine)


@pytest.mark.parametrize("mode", SPECULATIVE)
def test_stop_strings_and_min_tokens_under_speculation(world: World, mode: Mode) -> None:
    said = world.plain(batch(5, ignore_eos=True))
    stops = tuple({client.choices[0].text[6:8] for client in said} - {""})
    for fields in ({"stop": stops, "ignore_eos": True}, {"min_tokens": 12}, {"stop": stops, "min_tokens": 9}):
        for script in ("half_right", "late"):
            plain = world.plain(batch(5, **fields))
            draft = ScriptedDraft(SCRIPTS[script](world.truth, 1))
            engine = world.rig.engine(mode, [draft.connect], speculation={"k": 5, "wait_ms": 1.0})
            connect(engine)
            assert_same(world.rig, plain, run(engine, batch(5, **fields)), f"{mode} {script} {fields}")
            assert_clean(engine, draft)
            engine.stop()
