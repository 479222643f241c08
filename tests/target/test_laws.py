"""Laws that a target takes in: only well-formed ones, only for the proposal they name, and never waited for long."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest
import torch

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link.laws import pack_law
from ssd_cluster.link.messages import Law
from ssd_cluster.link.stream import Inbox
from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.target.laws import ChoiceDraws, LawDesk, await_laws, law_of
from ssd_cluster.target.session import Session, SessionState, SessionTerms
from ssd_cluster.target.times import RoundTimes
from ssd_cluster.types import Proposal, ProposalKind
from ssd_cluster.verify import DenseLaw, SparseLaw

KNOWN, COLUMNS = 10, 12
CPU = torch.device("cpu")
X = Proposal(100, (4, 7), ProposalKind.SPARSE, "draft")
DENSE = replace(X, kind=ProposalKind.DENSE)


def sparse(proposal: Proposal = X, ids: object = ((4, 5), (7, 8)), p: object = ((0.75, 0.25), (0.5, 0.5))) -> Law:
    return pack_law(1, 1, proposal.fingerprint, ProposalKind.SPARSE, p, ids)  # type: ignore[arg-type]


def dense(values: list[float]) -> Law:
    return pack_law(1, 1, X.fingerprint, ProposalKind.DENSE, [values] * 2)


def session(inflight: Proposal = X) -> Session:
    terms = SessionTerms([0] * 100, 4, 1.0, 0, 0, 1.0, (), 200, 0, ProposalKind.SPARSE)
    made = Session(1, terms)
    made.inflight = inflight
    made.state = SessionState.ATTACHED
    return made


class Desk:
    def __init__(self) -> None:
        self.metrics = TargetMetrics()
        self.desk = LawDesk(KNOWN, COLUMNS, CPU, self.metrics)

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def test_a_sparse_law() -> None:
    law = law_of(sparse(), X, KNOWN, COLUMNS, CPU)
    assert isinstance(law, SparseLaw)
    assert law.probability_of(torch.tensor([4, 7])).tolist() == [0.75, 0.5]
    assert law.dense(COLUMNS).sum(dim=-1).tolist() == [1.0, 1.0]


def test_a_dense_law_is_padded_to_the_rows_of_the_target() -> None:
    law = law_of(dense([0.1] * KNOWN), DENSE, KNOWN, COLUMNS, CPU)
    assert isinstance(law, DenseLaw)
    assert law.rows.shape == (2, COLUMNS)
    assert law.rows[:, KNOWN:].tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(sparse(ids=((4,), (7,)), p=((1.0,), (0.5,))), id="a sum"),
        pytest.param(sparse(p=((math.nan, 1.0), (0.5, 0.5))), id="not a number"),
        pytest.param(sparse(p=((-0.5, 1.5), (0.5, 0.5))), id="negative"),
        pytest.param(sparse(ids=((4, KNOWN), (7, 8))), id="an unknown id"),
        pytest.param(sparse(ids=((4, 4), (7, 8))), id="an id twice"),
        pytest.param(sparse(ids=((4, 5),), p=((0.5, 0.5),)), id="a row short"),
        pytest.param(replace(sparse(), probabilities=bytes(7)), id="cut"),
        pytest.param(dense([0.1] * KNOWN), id="another kind"),
    ],
)
def test_what_is_no_law_of_the_proposal_is_refused(message: Law) -> None:
    with pytest.raises((InvalidFrame, ValueError)):
        law_of(message, X, KNOWN, COLUMNS, CPU)
    desk, live = Desk(), session()
    desk.desk.take(live, message)
    assert live.law is None
    assert desk.value("ssd:link_dropped_total", reason="bad_law") == 1
    desk.desk.count(live, live.law, refused=False)
    assert desk.value("ssd:laws_total", result="refused") == 1


def test_a_law_of_another_proposal_is_dropped() -> None:
    desk = Desk()
    for live in (session(replace(X, tokens=(4, 8))), session(replace(X, kind=ProposalKind.DELTA))):
        desk.desk.take(live, sparse())
        assert live.law is None
        desk.desk.count(live, live.law, refused=False)
    assert desk.value("ssd:link_dropped_total", reason="stale_law") == 2
    assert desk.value("ssd:laws_total", result="late") == 2


def test_laws_that_were_not_drawn_from_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    desk, live = Desk(), session()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            desk.desk.take(live, sparse())
            desk.desk.count(live, live.law, refused=True)
    assert desk.value("ssd:laws_total", result="refused") == 3
    assert len(caplog.records) == 1


def test_a_new_proposal_forgets_the_law_of_the_last_one() -> None:
    live = session()
    Desk().desk.take(live, sparse())
    assert live.law is not None
    live._verifies(X)
    assert live.law is not None
    live._verifies(replace(X, base_len=101))
    assert live.law is None


def test_a_law_that_is_not_there_is_waited_for_as_long_as_the_times_allow() -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    class Waited(Inbox):
        asked: list[float]

        def wait(self, timeout_s: float) -> bool:
            self.asked.append(timeout_s)
            clock.now += 0.6 * timeout_s
            return True

    for verify_s, wanted in ((0.002, 0.0001), (10.0, 0.001), (None, None)):
        clock, inbox, times = Clock(), Waited(), RoundTimes(verify_s=verify_s)
        inbox.asked = []
        live, calls = session(), []

        def receive(live: Session = live, calls: list[int] = calls) -> None:
            calls.append(1)
            if len(calls) == 3:
                Desk().desk.take(live, sparse())

        await_laws([live], inbox, receive, times, clock)
        assert inbox.asked == ([] if wanted is None else pytest.approx([wanted, 0.4 * wanted]))
        assert (live.law is not None) == (wanted is not None)


def test_nobody_waits_for_a_law_that_will_not_come() -> None:
    def never(timeout_s: float) -> bool:
        raise AssertionError("waited")

    inbox = Inbox()
    inbox.wait = never  # type: ignore[method-assign]
    away, refused, delta = session(), session(), session(replace(X, kind=ProposalKind.DELTA))
    away.state, refused.law_refused = SessionState.DETACHED, True
    await_laws([away, refused, delta], inbox, lambda: None, RoundTimes(verify_s=1.0), lambda: 0.0)


def test_no_randomness_of_a_choice_is_used_twice() -> None:
    draws = ChoiceDraws(7, 3, 16, CPU)
    assert [draws.prepare(2) for _ in range(3)] == [True, True, False]
    taken = [draws.take() for _ in range(4)]
    assert [one.round_word for one in taken] == [0, 1, 2, 3]
    rows = torch.stack([one.residual(one.base) for one in taken])
    uniforms = torch.stack([one.accept(3) for one in taken])
    assert torch.unique(rows, dim=0).shape[0] == torch.unique(uniforms, dim=0).shape[0] == 4
