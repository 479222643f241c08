"""Settings of speculation that change while requests run: taken over at once, with the text of plain decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine_pair import SteppedPair, draft_settings
from support.ratio_pair import DOMAIN
from support.target_rig import Client, Rig, request, run, submit
from support.tiny import perturb

from ssd_cluster.config import SpeculationSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.types import Mode

REQUESTS = [
    request("cold", range(5, 45), temperature=0, max_tokens=90),
    request("warm", range(60, 90), temperature=0.9, seed=5, max_tokens=90),
]


@pytest.fixture(scope="module")
def draft(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return perturb(checkpoint, tmp_path_factory.mktemp("tuning") / "draft", 0.01)


@pytest.fixture
def pair(rig: Rig, draft: Path, expected: list[list[list[int]]]) -> Iterator[SteppedPair]:
    made = SteppedPair(rig, draft_settings(draft), k=3)
    made.connect()
    yield made
    made.close()


def retune(pair: SteppedPair, **changes: Any) -> None:
    """As a ``user_config`` does."""
    before = pair.engine.settings.speculation
    fields = {name: getattr(before, name) for name in SpeculationSettings.model_fields}
    pair.engine.retune(SpeculationSettings.model_validate(fields | changes))


def some_rounds(pair: SteppedPair, n: int = 6) -> int:
    """Run a few rounds; the longest proposal there was."""
    longest = 0
    for _ in range(n):
        pair.step()
        longest = max(longest, *(len(choice.proposal.tokens) for choice in pair.engine._scheduler.running))
    return longest


@pytest.fixture(scope="module")
def expected(rig: Rig) -> list[list[list[int]]]:
    """What plain decoding says to ``REQUESTS``."""
    return [client.tokens for client in run(rig.engine(Mode.AR), REQUESTS)]


def tokens(clients: list[Client]) -> list[list[list[int]]]:
    assert all(client.finished is not None and client.finished.error is None for client in clients)
    return [client.tokens for client in clients]


def test_k_changes_with_requests_running(pair: SteppedPair, expected: list[list[list[int]]]) -> None:
    clients = submit(pair.engine, REQUESTS)
    assert some_rounds(pair) == 3
    for k in (1, 7, 2):
        retune(pair, k=k)
        pair.step()  # what had been proposed before is still verified
        assert some_rounds(pair) == k
        assert pair.value("ssd:planned_k") == k
    pair.drain()
    assert tokens(clients) == expected


def test_no_speculation_and_back(pair: SteppedPair, expected: list[list[list[int]]]) -> None:
    clients = submit(pair.engine, REQUESTS)
    some_rounds(pair)
    retune(pair, k=0)
    pair.step()
    assert some_rounds(pair) == 0
    assert pair.drafts[0].n_sessions == 0
    retune(pair, k=4)
    late = submit(pair.engine, [dataclasses.replace(one, request_id=f"{one.request_id} again") for one in REQUESTS])
    assert some_rounds(pair, 12) == 4
    pair.drain()
    assert tokens(clients) == tokens(late) == expected


def test_rows_change_with_the_next_commit(pair: SteppedPair) -> None:
    client = submit(pair.engine, REQUESTS[:1])[0]
    some_rounds(pair)
    sessions = [choice.session for choice in pair.engine._scheduler.running]
    assert [session.asked_rows for session in sessions if session is not None] == [8]
    retune(pair, rows=2)
    some_rounds(pair, 2)
    assert [session.asked_rows for session in sessions if session is not None] == [2]
    pair.drain()
    assert client.finished is not None


def test_chain_k_changes_the_next_chain(pair: SteppedPair) -> None:
    choices = submit(pair.engine, REQUESTS[:1])
    some_rounds(pair)
    (choice,) = pair.engine._scheduler.running
    proposer = pair.engine._rounds._proposer
    assert proposer._chain_k(choice) == 3
    retune(pair, chain_k=2)
    some_rounds(pair, 2)
    assert proposer._chain_k(choice) == 2
    pair.drain()
    assert choices[0].finished is not None


def test_policy_fallback_and_wait_are_followed(pair: SteppedPair) -> None:
    engine = pair.engine
    retune(pair, miss_policy="always_wait", fallback="ngram", wait_ms=1.0)
    assert engine.settings.speculation.fallback.value == "none"  # not before the engine comes to it
    engine.step()
    speculation = engine.settings.speculation
    assert (speculation.miss_policy.value, speculation.fallback.value, speculation.wait_ms) == (
        "always_wait",
        "ngram",
        1.0,
    )
    proposer = engine._rounds._proposer
    assert proposer.settings is speculation
    assert proposer.estimator.should_wait(2, 1)
    retune(pair, miss_policy="never_wait")
    engine.step()
    assert not proposer.estimator.should_wait(2, 1)


def test_a_controller_comes_and_goes(pair: SteppedPair, expected: list[list[list[int]]]) -> None:
    clients = submit(pair.engine, REQUESTS)
    some_rounds(pair)
    assert pair.drafts[0].n_sessions == 2
    retune(pair, controller="on")
    some_rounds(pair, 2)
    assert pair.engine._pilot.plan is not None
    assert pair.drafts[0].n_sessions == 0  # it begins without
    retune(pair, controller="off")
    some_rounds(pair, 3)
    assert pair.engine._pilot.plan is None
    assert pair.drafts[0].n_sessions == 2
    pair.drain()
    assert tokens(clients) == expected


def test_a_ratio_rule_changes_and_k_with_it(rig: Rig, draft: Path, expected: list[list[list[int]]]) -> None:
    settings = draft_settings(draft, trust_domain=DOMAIN)
    speculation = {
        "k": 2,
        "rows": 8,
        "kind": "sparse",
        "rule": "block",
        "miss_policy": "never_wait",
        "fallback": "none",
    }
    pair = SteppedPair(rig, settings)
    pair.engine.stop()
    connectors = [pair._connector(inbox) for inbox in pair.inboxes]
    pair.engine = rig.engine(Mode.SSD, connectors, speculation=speculation, trust_domain=DOMAIN)
    pair.connect()
    clients = submit(pair.engine, REQUESTS)
    some_rounds(pair)
    retune(pair, rule="token", k=5)
    pair.step()
    assert some_rounds(pair, 12) == 5
    pair.drain()
    assert all(len(client.tokens[0]) == 90 for client in clients)
    assert tokens(clients)[0] == expected[0]  # greedy text has no freedom
    pair.close()


def test_what_cannot_be_taken_over_changes_nothing(pair: SteppedPair) -> None:
    before = pair.engine.settings
    with pytest.raises(ConfigError, match=r"speculation\.trie_nodes cannot change in place"):
        retune(pair, trie_nodes=100)
    pair.step()
    assert pair.engine.settings is before
