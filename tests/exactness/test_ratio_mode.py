"""Ratio mode end to end: the law of short continuations is that of plain decoding, whatever arrives when.

Both engines run, over the in-process link with its codec, on a pair of random models with four token ids, so that the
law of every text is known exactly. Seeds are fixed. All tests together reject a correct engine with probability 1e-3
(Bonferroni); a mutated engine must be rejected at the same level.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engine_pair import draft_settings
from support.ratio_pair import (
    PROMPT,
    VOCABULARY,
    RatioPair,
    chi_square,
    markov_pair,
    part,
    plain_law,
    row_law,
    tiny_pair,
)
from support.target_rig import Rig, request, run
from support.target_rig import connect as open_link

from ssd_cluster.config import LinkSettings
from ssd_cluster.draft.engine import load_draft
from ssd_cluster.draft.laws import LawRow
from ssd_cluster.draft.sampler import Drawn, DrawRow, RowSampler
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import Law
from ssd_cluster.link.stream import Inbox
from ssd_cluster.sampling.processors import RowParams, process
from ssd_cluster.target.request import SpeculativeOptions
from ssd_cluster.types import Mode

TESTS = 8
LEVEL = 1e-3 / TESTS
THREE = slice(2, 5)
"""The first two tokens are plain steps, for the session is not open yet; three that chained rounds decide follow."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, Path]:
    return tiny_pair(tmp_path_factory.mktemp("ratio"))


def p_value(pair: RatioPair, n: int, **params: Any) -> float:
    """Of ``n`` continuations of three tokens against the law of plain decoding; the pair is closed."""
    pair.connect()
    # The last token of a text is never proposed, and pushed blocks are not asked for when two are left.
    rest = 1 if pair.engine.settings.mode is Mode.SD else 2
    samples = [text[THREE] for text in pair.sample(n, THREE.stop + rest, **params)]
    law = part(plain_law(pair.rig, THREE.stop, pair.prompt, **params), THREE)
    pair.close()
    return chi_square(samples, law)


CHAINS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"kind": "dense", "rule": "token"}, {}),
    ({"kind": "sparse", "rule": "block", "top_m": 3}, {}),
    ({"kind": "dense", "rule": "hsd"}, {"top_k": 3, "top_p": 0.95, "temperature": 1.3}),
    ({"kind": "sparse", "rule": "token", "top_m": 3, "saguaro": {"c": 0.3, "f": 1}}, {"top_k": 3, "temperature": 1.3}),
]


@pytest.mark.parametrize(("speculation", "params"), CHAINS, ids=lambda value: "-".join(map(str, value.values())))
def test_chains_of_a_synchronous_draft(
    models: tuple[Rig, Path], speculation: dict[str, Any], params: dict[str, Any]
) -> None:
    pair = RatioPair(*models, speculation, mode=Mode.SD)
    assert p_value(pair, 400, **params) > LEVEL
    assert pair.laws()["used"] > 400
    assert pair.laws()["late"] == pair.laws()["refused"] == 0


def test_trees_that_are_pushed(models: tuple[Rig, Path]) -> None:
    pair = RatioPair(*models, {"kind": "sparse", "rule": "block", "top_m": 3, "rows": 5})
    assert p_value(pair, 250) > LEVEL
    assert pair.laws()["used"] > 250
    assert pair.value("ssd:cache_lookups_total", result="hit") > 250


def test_laws_that_do_not_come_or_belong_to_others(models: tuple[Rig, Path]) -> None:
    """Every third law is lost, another one names another proposal: those rounds are verified as point masses."""
    turn = itertools.count()

    def spoil(law: Law) -> Law | None:
        which = next(turn) % 3
        return None if which == 0 else replace(law, fingerprint=law.fingerprint ^ 1) if which == 1 else law

    pair = RatioPair(*models, {"kind": "sparse", "rule": "token", "top_m": 4}, mode=Mode.SD, spoil=spoil)
    assert p_value(pair, 400) > LEVEL
    laws = pair.laws()
    assert laws["late"] > laws["used"] > 100
    assert laws["refused"] == 0
    assert pair.value("ssd:link_dropped_total", reason="stale_law") == pytest.approx(laws["late"] / 2, rel=0.1)


def test_the_draft_is_kept_as_often_as_its_law_allows(models: tuple[Rig, Path]) -> None:
    """With one token at a time the token-wise rule keeps it with probability 1 - TV(p, q)."""
    rig, folder = models
    pair = RatioPair(rig, folder, {"kind": "dense", "rule": "token", "k": 1}, mode=Mode.SD)
    pair.connect()
    n, draft, row = 300, Rig.load(folder), RowParams()
    expected = 0.0
    for text, p in plain_law(rig, 2).items():
        laws = [row_law(one, [*PROMPT, *text], row) for one in (rig, draft)]
        expected += p * sum(map(min, *laws))
    pair.sample(n, 4)  # two plain steps, then one round that proposes one token
    assert pair.laws() == {"used": n, "late": 0, "refused": 0}
    kept = pair.value("vllm:spec_decode_num_accepted_tokens_total") / n
    assert kept == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / n))
    pair.close()


@pytest.mark.parametrize("mode", [Mode.SD, Mode.SSD])
@pytest.mark.parametrize(("kind", "rule"), [("sparse", "token"), ("sparse", "block"), ("dense", "hsd")])
def test_temperature_zero_gives_the_greedy_text(models: tuple[Rig, Path], mode: Mode, kind: str, rule: str) -> None:
    rig, folder = models
    greedy = request("g", PROMPT, temperature=0.0, max_tokens=20, ignore_eos=True)
    plain = run(rig.engine(Mode.AR), [greedy])[0].tokens
    pair = RatioPair(rig, folder, {"kind": kind, "rule": rule}, mode=mode)
    pair.connect()
    client = pair.run([greedy])[0]
    assert client.tokens == plain
    assert client.finished is not None
    assert client.finished.speculation.num_accepted_draft_tokens > 0
    assert sum(pair.laws().values()) == 0, "a greedy draft has nothing to say beyond its tokens"
    pair.close()


def test_all_kinds_in_one_batch(models: tuple[Rig, Path]) -> None:
    rig, folder = models
    requests = [
        request(f"m{i}", [*PROMPT, *PROMPT, i % VOCABULARY], seed=i, max_tokens=16, ignore_eos=True, **fields)
        for i, fields in enumerate(
            [
                {"temperature": 0.0},
                {"temperature": 1.0},
                {"temperature": 0.7, "top_k": 2},
                {"temperature": 1.0, "speculative": SpeculativeOptions(enabled=False)},
                {"temperature": 1.0, "top_p": 0.8, "n": 2},
            ]
        )
    ]
    plain = run(rig.engine(Mode.AR), requests)
    speculation = {"kind": "sparse", "top_m": 3, "fallback": "ngram", "rows": 3}
    pair = RatioPair(rig, folder, speculation)
    pair.connect()
    got = pair.run(requests)
    for i in (0, 3):  # greedy, and without a draft: nothing of this is left to a ratio rule
        assert got[i].tokens == plain[i].tokens
    assert all(len(tokens) == 16 for client in got for tokens in client.tokens)
    assert pair.laws()["used"] > 0
    assert pair.value("ssd:fallbacks_total", source="ngram") > 0
    pair.close()


# --- mutations


def residual_of_the_token_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """(p - q)+ after a stop of the block rule, instead of (rho p - q)+."""
    block = sys.modules["ssd_cluster.verify.block"]
    stopped = block.stopped  # type: ignore[attr-defined]
    monkeypatch.setattr(block, "stopped", lambda chain, kept, rho: stopped(chain, kept, 1.0))


def law_before_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law that is sent is q before top_k, tokens are drawn after it."""
    draw = RowSampler._draw_with_laws

    def mutated(self: RowSampler, logits: torch.Tensor, rows: list[DrawRow], which: list[int], drawn: Drawn) -> None:
        draw(self, logits, rows, which, drawn)
        for i in which:
            params = RowParams(temperature=rows[i].sampling.temperature)
            drawn.laws[i] = LawRow(process(logits[i : i + 1], [params])[0])

    monkeypatch.setattr(RowSampler, "_draw_with_laws", mutated)


START, STEP = [0.0, 0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0, 0.0]
P = [[0.17, 0.37, 0.46, 0.0, 0.0], [0.09, 0.77, 0.14, 0.0, 0.0], [0.23, 0.0, 0.77, 0.0, 0.0], STEP, START]
Q = [[0.01, 0.01, 0.98, 0.0, 0.0], [0.78, 0.01, 0.21, 0.0, 0.0], [0.01, 0.47, 0.52, 0.0, 0.0], STEP, START]
"""Laws after each last token, searched for a large effect of a residual without the prefix ratio. Text starts 4 3 0."""


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rig, Path]:
    return markov_pair(tmp_path_factory.mktemp("markov"), P, Q)


Mutation = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: list[tuple[Mutation, dict[str, Any], dict[str, Any], int]] = [
    (residual_of_the_token_rule, {"kind": "dense", "rule": "block"}, {}, 800),
    (law_before_the_processors, {"kind": "dense", "rule": "token"}, {"top_k": 2, "temperature": 4.0}, 250),
]


@pytest.mark.parametrize(("mutate", "speculation", "params", "n"), MUTATIONS, ids=["block", "token"])
def test_mutations_are_caught(
    unlike: tuple[Rig, Path],
    monkeypatch: pytest.MonkeyPatch,
    mutate: Mutation,
    speculation: dict[str, Any],
    params: dict[str, Any],
    n: int,
) -> None:
    def p() -> float:
        return p_value(RatioPair(*unlike, speculation, mode=Mode.SD, prompt=(4,) * 4), n, **params)

    assert p() > LEVEL
    mutate(monkeypatch)
    assert p() < LEVEL


def test_over_grpc_with_threads(models: tuple[Rig, Path]) -> None:
    """Nothing waits for a law beyond its moment, so how many are used is the machine's affair; some are."""
    rig, folder = models
    inbox, link = Inbox(), LinkSettings()
    draft = load_draft(draft_settings(folder, trust_domain="a"), inbox)
    draft.start()
    with LinkLoop() as loop:
        listener = Listener("127.0.0.1", 0, inbox, link, loop)
        speculation = {"kind": "sparse", "k": 3, "top_m": 3, "miss_policy": "always_wait", "wait_ms": 10_000.0}
        engine = rig.engine(
            Mode.SSD,
            [lambda target_inbox: connect(listener.endpoint, target_inbox, link, loop)],
            speculation=speculation,
            trust_domain="a",
        )
        open_link(engine)
        value = engine.metrics.registry.get_sample_value
        for seed in range(50):
            run(engine, [request("g", PROMPT, seed=seed, max_tokens=16, ignore_eos=True)])
            if value("ssd:laws_total", {"result": "used"}):
                break
        assert value("ssd:laws_total", {"result": "used"})
        assert not value("ssd:laws_total", {"result": "refused"})
        engine.stop()
        listener.close()
    assert draft.stop()
