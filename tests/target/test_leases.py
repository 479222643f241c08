"""Sessions under leases: asked for, used, moved and given back; the text never depends on any of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from support.lessors import ScriptedLessor
from support.scripted_draft import HalfRight, ScriptedDraft, load
from support.target_rig import Rig, assert_clean, drain, request, submit

from ssd_cluster.config import SpeculationSettings, TargetSettings
from ssd_cluster.errors import LinkError
from ssd_cluster.link.messages import Close, Nack, NackCode, Open
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.leases import EXCLUDE_S, Grant, Leasing
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import Mode

from .conftest import Reference

Plain = Callable[[list[GenerationRequest]], Reference]
STEPS = 400


class Pool:
    """Scripted drafts by endpoint, a lessor, and an engine that reaches them through it."""

    def __init__(self, rig: Rig, known: Reference, n: int = 1, shards: int = 1) -> None:
        self.now = 100.0
        self.known = known
        self.drafts = [ScriptedDraft(HalfRight(known.truth), welcome={"incarnation": 70 + i}) for i in range(n)]
        self.lessor = ScriptedLessor(always=self.grant(0))
        settings = TargetSettings(
            model=rig.model, mode=Mode.SSD, speculation=SpeculationSettings(k=3, rows=4, shards=shards, wait_ms=2.0)
        )
        leasing = Leasing(self.lessor, self._dial)
        rig.runner.pool.check()
        self.engine = TargetEngine(
            rig.runner, rig.tokenizer, settings, clock=self._clock, rng=random.Random(7), leasing=leasing
        )

    def _clock(self) -> float:
        self.now += 1e-6
        return self.now

    def _dial(self, endpoint: str, inbox: Inbox) -> Stream:
        draft = self.drafts[int(endpoint)]
        if not draft.reachable:
            raise LinkError("nothing answers")
        return draft.connect(inbox)

    def grant(self, index: int) -> Grant:
        return Grant(f"replica-{index}", str(index), 70 + index)

    def submit(self, requests: list[GenerationRequest]) -> None:
        self.clients = submit(self.engine, requests)

    def until(self, condition: Callable[[], object], step_s: float = 0.0) -> None:
        for _ in range(STEPS):
            self.engine.step()
            self.now += step_s
            if condition():
                return
            time.sleep(0.0005)  # links come up on threads of their own
        raise AssertionError("it did not come to that")

    def finish(self) -> None:
        """Run to the end: the text of plain decoding, and nothing is left, least of all a lease."""
        drain(self.engine)
        self.engine.step()
        assert [c.tokens for c in self.clients] == [c.tokens for c in self.known.clients]
        assert_clean(self.engine, *self.drafts)
        assert not self.lessor.asked
        assert self.engine.snapshot().leases == {"held": 0, "waiting": 0}
        self.engine.stop()
        assert self.lessor.closed


def requests(n: int = 2, max_tokens: int = 120) -> list[GenerationRequest]:
    return [
        request(f"r{i}", range(5 + i, 40 + i), seed=i, temperature=0.8, max_tokens=max_tokens, ignore_eos=True)
        for i in range(n)
    ]


@pytest.fixture
def pool(rig: Rig, reference: Plain) -> Pool:
    return Pool(rig, reference(requests()))


@pytest.fixture
def two(rig: Rig, reference: Plain) -> Pool:
    return Pool(rig, reference(requests()), n=2)


def opened(draft: ScriptedDraft) -> list[Open]:
    return [message for message in draft.received if isinstance(message, Open)]


def test_each_session_is_opened_under_a_lease_of_its_own_id(pool: Pool) -> None:
    pool.submit(requests())
    pool.until(lambda: len(pool.drafts[0].sessions) == 2)
    assert pool.drafts[0].connections == 1
    assert {one.session for one in pool.lessor.asked.values()} == set(pool.drafts[0].sessions)
    assert pool.engine.snapshot().leases == {"held": 2, "waiting": 0}
    assert pool.lessor.history[0].wish.rows == 4
    pool.finish()
    assert len(pool.lessor.history) == 2


def test_a_lease_that_is_not_granted_is_not_waited_for_and_stays_asked_for(pool: Pool) -> None:
    pool.lessor.always = None
    pool.submit(requests())
    for _ in range(10):
        pool.engine.step()
        pool.now += 10.0
    assert [len(c.tokens[0]) > 5 for c in pool.clients] == [True, True]
    assert pool.engine.snapshot().leases == {"held": 0, "waiting": 2}
    assert len(pool.lessor.history) == 2
    assert not pool.engine.drafts.links.replicas
    pool.lessor.grant(pool.grant(0))
    pool.until(lambda: len(pool.drafts[0].sessions) == 2)
    assert all(len(message.tokens) > 45 for message in opened(pool.drafts[0])), "all text decoded meanwhile"
    pool.finish()


@pytest.mark.parametrize("granted", [False, True])
def test_an_abort_gives_the_lease_back(pool: Pool, granted: bool) -> None:
    if not granted:
        pool.lessor.always = None
    pool.submit(requests())
    pool.until(lambda: pool.engine.snapshot().leases[("held" if granted else "waiting")] == 2)
    for one in requests():
        pool.engine.abort(one.request_id)
    pool.engine.step()
    assert not pool.lessor.asked
    pool.engine.stop()


def test_a_lost_draft_is_left_and_avoided_for_a_while(two: Pool) -> None:
    two.submit(requests())
    two.until(lambda: len(two.drafts[0].sessions) == 2)
    two.lessor.always = two.grant(1)
    two.drafts[0].kill()
    two.until(lambda: len(two.drafts[1].sessions) == 2)
    late = two.lessor.history[-1].wish
    assert late.exclude == ("replica-0",)
    assert late.linked == ()
    assert len(two.lessor.asked) == 2
    assert [r.name for r in two.engine.drafts.links.replicas if r.wanted] == ["replica-1"]
    two.now += EXCLUDE_S
    two.until(lambda: [r.name for r in two.engine.drafts.links.replicas] == ["replica-1"])
    two.finish()


def test_a_link_is_kept_for_a_while_and_named_in_later_wishes(pool: Pool) -> None:
    pool.submit(requests())
    drain(pool.engine)
    pool.engine.step()
    assert not pool.lessor.asked
    pool.clients = submit(pool.engine, [request("again", range(9, 30), max_tokens=5)])
    drain(pool.engine)
    assert pool.lessor.history[-1].wish.linked == ("replica-0",)
    assert pool.drafts[0].connections == 1
    pool.now += 60.0
    pool.engine.step()
    assert not pool.engine.drafts.links.replicas
    assert pool.drafts[0].stream is not None
    assert pool.drafts[0].stream.closed
    pool.engine.stop()


@pytest.mark.parametrize("how", ["revoked", "ended", "draining"])
def test_a_session_moves_at_a_round_boundary_and_then_closes(two: Pool, how: str) -> None:
    two.submit(requests())
    two.until(lambda: len(two.drafts[0].sessions) == 2)
    two.lessor.always = None
    {
        "revoked": two.lessor.revoke,
        "ended": two.lessor.end,
        "draining": lambda: two.drafts[0].push(load(draining=True)),
    }[how]()
    for _ in range(3):
        two.engine.step()
    assert len(two.drafts[0].sessions) == 2, "without another lease a session stays where it is"
    assert {one.wish.exclude for one in two.lessor.history[2:]} == {("replica-0",)}
    assert two.engine.snapshot().leases == {"held": 2, "waiting": 2}
    two.lessor.grant(two.grant(1))
    two.until(lambda: len(two.drafts[1].sessions) == 2)
    assert two.engine.snapshot().leases == {"held": 2, "waiting": 0}
    assert not two.drafts[0].sessions
    assert sum(len(m.sessions) for m in two.drafts[0].received if isinstance(m, Close)) == 2
    assert {message.epoch for message in opened(two.drafts[1])} == {2}
    two.finish()


def test_the_same_replica_again_keeps_its_sessions(pool: Pool) -> None:
    pool.submit(requests())
    pool.until(lambda: len(pool.drafts[0].sessions) == 2)
    pool.lessor.end()
    pool.until(lambda: pool.engine.snapshot().leases == {"held": 2, "waiting": 0} and len(pool.lessor.history) == 4)
    assert len(pool.drafts[0].sessions) == 2
    assert len(opened(pool.drafts[0])) == 2
    pool.finish()


def test_busy_gives_the_lease_back_and_asks_again_later(pool: Pool) -> None:
    pool.drafts[0].answers = [Nack(0, 0, NackCode.BUSY)]
    pool.submit(requests(1))
    pool.until(lambda: len(opened(pool.drafts[0])) == 1)
    pool.until(lambda: not pool.lessor.asked)
    pool.until(lambda: len(pool.drafts[0].sessions) == 1, step_s=0.2)
    assert pool.lessor.history[-1].wish.exclude == ("replica-0",)
    drain(pool.engine)
    pool.engine.stop()


@pytest.mark.parametrize("trouble", ["unreachable", "another incarnation", "no room"])
def test_a_lease_that_cannot_be_used_is_given_back(two: Pool, trouble: str) -> None:
    if trouble == "unreachable":
        two.drafts[0].reachable = False
    elif trouble == "another incarnation":
        two.drafts[0].welcome["incarnation"] = 5
    else:
        two.drafts[0].welcome["session_credit"] = 0
    two.submit(requests())
    two.until(lambda: len(two.lessor.history) > 2, step_s=1.0)
    assert len(two.lessor.asked) <= 2
    assert not two.drafts[0].sessions
    assert two.lessor.history[-1].wish.exclude == ("replica-0",)
    two.lessor.always = two.grant(1)
    drain(two.engine)
    assert [c.tokens for c in two.clients] == [c.tokens for c in two.known.clients]
    two.engine.step()
    assert not two.lessor.asked
    two.engine.stop()


def test_a_link_comes_up_for_a_visitor_and_its_lease_goes(pool: Pool) -> None:
    pool.engine.start()
    assert pool.engine.wait_for_draft(10.0)
    pool.engine.stop()
    assert {one.session for one in pool.lessor.history} == {0}
    assert not pool.lessor.asked
