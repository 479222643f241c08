"""Branches of one sequence over several drafts: each guesses its share, and together they guess more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from support.engine_pair import SteppedPair, draft_settings, stats
from support.scripted_draft import HalfRight, Script, ScriptedDraft, ScriptedSession, ToTarget
from support.target_rig import Rig, assert_clean, connect, request, run, submit
from support.tiny import perturb

from ssd_cluster.config import SpeculationSettings
from ssd_cluster.link.messages import BlockBatch, CommitBatch, CommitRow
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import Mode, shard_of

from .conftest import Reference
from .test_leases import EXCLUDE_S, Pool, opened

Plain = Callable[[list[GenerationRequest]], Reference]


@pytest.fixture(scope="module")
def draft(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return perturb(checkpoint, tmp_path_factory.mktemp("shards") / "draft", 0.02)


def requests(n: int = 2, **fields: Any) -> list[GenerationRequest]:
    merged = {"temperature": 0.8, "max_tokens": 60, "ignore_eos": True} | fields
    return [request(f"r{i}", range(5 + i, 40 + i), seed=i, **merged) for i in range(n)]


def rows(draft: ScriptedDraft) -> list[CommitRow]:
    return [row for message in draft.received if isinstance(message, CommitBatch) for row in message.rows]


@pytest.mark.parametrize("proposed", range(9))
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_every_kept_length_has_one_draft(proposed: int, shards: int) -> None:
    owners = [shard_of(kept, proposed, shards) for kept in range(proposed + 1)]
    assert all(0 <= owner < shards for owner in owners)
    assert owners[0] == 0
    assert proposed == 0 or owners[-1] == shards - 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_two_drafts_guess_more_than_one_and_the_text_is_the_same(
    rig: Rig, reference: Plain, draft: Path, temperature: float
) -> None:
    asked = requests(4, temperature=temperature, max_tokens=120)
    known = reference(asked)
    hits = {}
    for shards in (1, 2):
        pair = SteppedPair(rig, draft_settings(draft), n_drafts=2, rows=3, shards=shards)
        pair.connect()
        got = pair.run(asked)
        assert [client.tokens for client in got] == [client.tokens for client in known.clients]
        hits[shards] = sum(stats(client).cache_hits for client in got) / sum(
            stats(client).cache_hits + stats(client).cache_misses for client in got
        )
        pair.close()
    assert hits[2] > hits[1]


class Watched(HalfRight):
    """Guesses nothing outside its share, as a draft does, and keeps what it was asked for."""

    def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Any]:
        row = session.row
        return [
            branch
            for branch in super().branches(session, proposal, k, rows)
            if row is None or shard_of(branch.k, len(proposal), row.shards) == row.shard
        ]


def test_the_share_of_a_lost_draft_goes_to_the_others(rig: Rig, reference: Plain) -> None:
    known = reference(requests(1))
    drafts = [ScriptedDraft(Watched(known.truth)) for _ in range(2)]
    engine = rig.engine(Mode.SSD, [one.connect for one in drafts], speculation={"k": 4, "rows": 7, "shards": 2})
    connect(engine)
    (client,) = submit(engine, requests(1))

    def until(condition: Callable[[], object]) -> None:
        for _ in range(200):
            if condition():
                return
            engine.step()
        raise AssertionError("it did not come to that")

    until(lambda: all(any(row.shards == 2 for row in rows(one)) for one in drafts))
    assert {row.shard for one in drafts for row in rows(one)[-1:]} == {0, 1}
    (partner,) = [one for one in drafts if rows(one)[-1].shard == 1]
    (first,) = [one for one in drafts if one is not partner]
    partner.kill()
    seen = len(rows(first))
    until(lambda: len(rows(first)) > seen + 1)
    assert rows(first)[-1].shards == 1
    until(lambda: client.finished)
    assert client.tokens == known.clients[0].tokens
    assert_clean(engine, first)


def test_one_draft_alone_serves_everything(rig: Rig, reference: Plain) -> None:
    known = reference(requests(1))
    only = ScriptedDraft(Watched(known.truth))
    engine = rig.engine(Mode.SSD, [only.connect], speculation={"k": 4, "rows": 7, "shards": 3})
    connect(engine)
    (client,) = run(engine, requests(1))
    assert client.tokens == known.clients[0].tokens
    assert len(opened(only)) == 1
    assert {(row.shard, row.shards) for row in rows(only)} == {(0, 1)}
    assert_clean(engine, only)


class Silent(Script):
    """Sends no block after the first session's first ones."""

    def deliver(self, message: ToTarget) -> Iterable[ToTarget]:
        if not isinstance(message, BlockBatch):
            yield message


def test_a_partner_that_sends_nothing_is_left_and_costs_nothing(rig: Rig, reference: Plain) -> None:
    known = reference(requests(1, max_tokens=120))
    good, silent = ScriptedDraft(Watched(known.truth)), ScriptedDraft(Silent(known.truth))
    engine = rig.engine(Mode.SSD, [good.connect, silent.connect], speculation={"k": 4, "rows": 7, "shards": 2})
    connect(engine)
    (client,) = run(engine, requests(1, max_tokens=120))
    assert client.tokens == known.clients[0].tokens
    assert rows(good)[-2].shards == 1
    assert_clean(engine, good, silent)


def test_partners_have_leases_of_their_own_on_other_drafts(rig: Rig, reference: Plain) -> None:
    asked = [
        request(f"r{i}", range(5 + i, 40 + i), seed=i, temperature=0.8, max_tokens=120, ignore_eos=True)
        for i in range(1)
    ]
    pool = Pool(rig, reference(asked), n=2, shards=2)
    pool.submit(asked)
    pool.until(lambda: len(pool.lessor.history) == 2)
    assert pool.lessor.history[1].wish.exclude == ("replica-0",)
    assert "replica-0" not in pool.lessor.history[1].wish.linked
    pool.until(lambda: pool.engine.snapshot().leases == {"held": 1, "waiting": 0})  # granted there all the same
    pool.now += EXCLUDE_S + 1
    pool.lessor.always = pool.grant(1)
    pool.until(lambda: pool.drafts[1].sessions)
    assert pool.engine.snapshot().leases == {"held": 2, "waiting": 0}
    pool.finish()


def test_only_tokens_can_be_shared_out() -> None:
    with pytest.raises(ValidationError, match="shards above 1 needs kind coupled"):
        SpeculationSettings(kind="sparse", shards=2)
