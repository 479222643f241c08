"""What must hold at every position of a burst and after every round, with drafts that are half right."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
from support.equality import assert_same, naive
from support.scripted_draft import HalfRight, Script, ScriptedDraft, ScriptedSession, Truth
from support.target_rig import Rig, assert_clean, connect, learn, request, run, submit

from ssd_cluster.link.messages import Branch, Open
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import FinishReason, Mode

from .conftest import Reference

PROMPT = range(5, 30)
Plain = Callable[[list[GenerationRequest]], Reference]
ENDS = tuple(range(4, 320, 2))


class ProposesEnds(Script):
    """The truth, with one token of every branch replaced by a token that would end the output."""

    def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Branch]:
        return [self._spoil(branch) for branch in super().branches(session, proposal, k, rows)]

    def chain(self, session: ScriptedSession, k: int) -> list[Branch]:
        return [self._spoil(branch) for branch in super().chain(session, k)]

    def _spoil(self, branch: Branch) -> Branch:
        tokens = list(branch.tokens)
        if tokens:
            tokens[self.rng.randrange(len(tokens))] = self.rng.choice(ENDS)
        return Branch(branch.k, branch.t_star, tuple(tokens), branch.score, branch.jit)


class Misses(Script):
    """No branch is right, every chain is; remembers how long branches and chains were asked to be."""

    def __init__(self, truth: Truth, k: int) -> None:
        super().__init__(truth, k)
        self.asked: dict[str, set[int]] = {"branches": set(), "chain": set()}

    def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Branch]:
        self.asked["branches"].add(k)
        return [dataclasses.replace(one, t_star=0) for one in super().branches(session, proposal, k, rows)]

    def chain(self, session: ScriptedSession, k: int) -> list[Branch]:
        self.asked["chain"].add(k)
        return super().chain(session, k)


@pytest.mark.parametrize("mode", [Mode.SD, Mode.SSD])
@pytest.mark.parametrize("wait_ms", [2.0, 1000.0])
def test_a_chain_is_no_longer_than_chain_k(rig: Rig, reference: Plain, mode: Mode, wait_ms: float) -> None:
    """A short wait ends in a pull, which asks for as much."""
    known = reference([request("r", PROMPT, max_tokens=30, ignore_eos=True)])
    script = Misses(known.truth, 5)
    draft = ScriptedDraft(script)
    engine = rig.engine(
        mode,
        [draft.connect],
        speculation={"k": 5, "chain_k": 2, "wait_ms": wait_ms, "miss_policy": "always_wait", "fallback": "none"},
    )
    connect(engine)
    clients = run(engine, [client.request for client in known.clients])
    assert_same(rig, known.clients, clients, "chain_k 2")
    assert max(script.asked["branches"], default=5) == 5
    assert max(script.asked["chain"]) == 2
    assert_clean(engine, draft)
    engine.stop()


@pytest.mark.parametrize("min_tokens", [1, 6, 11])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ends_are_masked_at_every_burst_position_until_min_tokens(
    rig: Rig, reference: Plain, temperature: float, min_tokens: int
) -> None:
    """Every other id ends the output, so the mask matters at about half of the positions."""
    fields = {"temperature": temperature, "stop_token_ids": ENDS, "min_tokens": min_tokens, "max_tokens": 20}
    requests = [request(f"r{i}", PROMPT, seed=i, **fields) for i in range(4)]
    known = reference(requests)
    for client in known.clients:
        (choice,) = client.choices
        assert choice.token_ids == naive(rig, client)
        assert not set(choice.token_ids[:min_tokens]) & set(ENDS)
        assert len(choice.token_ids) > min_tokens
    assert any(client.choices[0].reason is FinishReason.STOP for client in known.clients)
    for mode in (Mode.SD, Mode.SSD):
        for script in (Script, ProposesEnds):
            for k in (1, 4, 8):
                draft = ScriptedDraft(script(known.truth, k))
                engine = rig.engine(mode, [draft.connect], speculation={"k": k, "wait_ms": 1.0})
                connect(engine)
                got = run(engine, requests)
                assert_same(rig, known.clients, got, f"{mode} {script.__name__} k={k} min_tokens={min_tokens}")
                if script is Script and min_tokens > 1:
                    assert any(len(delta.token_ids) > 1 for client in got for delta in client.choices[0].deltas)
                assert_clean(engine, draft)
                engine.stop()


@pytest.mark.parametrize("mode", [Mode.SD, Mode.SSD])
def test_keys_and_values_cover_all_committed_tokens_but_the_last_after_every_round(
    rig: Rig, reference: Plain, mode: Mode
) -> None:
    requests = [request(f"r{i}", range(5 + i, 30 + 3 * i), temperature=0.8, seed=i, max_tokens=40) for i in range(4)]
    known = reference(requests)
    draft = ScriptedDraft(HalfRight(known.truth, 1))
    engine = rig.engine(mode, [draft.connect], blocks=24, speculation={"k": 5, "wait_ms": 1.0})
    connect(engine)
    clients = submit(engine, requests)
    bursts = set()
    while engine.snapshot().requests:
        engine.step()
        for choice in engine._scheduler.running:
            blocks = choice.blocks
            assert blocks.length == len(choice.tokens) - 1
            assert len(blocks.table) == -(-blocks.length // rig.model.block_size)
    for client in clients:
        bursts.update(len(delta.token_ids) for delta in client.choices[0].deltas)
    assert len(bursts) > 3, "rounds kept different numbers of tokens"
    assert_same(rig, known.clients, clients, f"{mode}")
    assert_clean(engine, draft)
    engine.stop()


@pytest.mark.parametrize("k", range(1, 9))
def test_thirteen_prompts_at_every_k_say_what_plain_decoding_says(rig: Rig, k: int) -> None:
    """One hundred and four prompts in all, hits and misses mixed, on one engine per K that is never empty."""
    rng = random.Random(k)
    requests = [
        request(
            f"r{i}",
            [rng.randrange(3, 320) for _ in range(rng.randrange(1, 70))],
            temperature=0 if i % 3 else 1.0,
            seed=i,
            max_tokens=rng.randrange(8, 24),
        )
        for i in range(13)
    ]
    plain, truth = run(rig.engine(Mode.AR, max_batch=6), requests), Truth()
    learn(truth, plain)
    draft = ScriptedDraft(HalfRight(truth, k))
    engine = rig.engine(Mode.SSD, [draft.connect], max_batch=6, speculation={"k": k, "wait_ms": 1.0})
    connect(engine)
    got = run(engine, requests)
    assert_same(rig, plain, got, f"k={k}")
    finished = [client.finished.speculation for client in got if client.finished is not None]
    assert sum(one.cache_hits for one in finished) > 0
    assert sum(one.cache_misses for one in finished) > 0
    assert_clean(engine, draft)
    engine.stop()


def test_the_draft_is_told_how_the_target_samples(rig: Rig, reference: Plain) -> None:
    one = request("r", PROMPT, temperature=0.6, top_k=17, top_p=0.8, seed=-3)
    draft = ScriptedDraft(Script(reference([one]).truth))
    engine = rig.engine(Mode.SSD, [draft.connect])
    connect(engine)
    run(engine, [one])
    (opened,) = [message for message in draft.received if isinstance(message, Open)]
    assert (opened.temperature, opened.top_k, opened.top_p) == (0.6, 17, 0.8)
    assert opened.seed == 2**64 - 3
    engine.stop()
