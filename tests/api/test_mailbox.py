"""The queue between the engine's thread and a request: order, bound, no waiting on the engine's side."""

from __future__ import annotations

import asyncio
import threading

from support.scripted_engine import DEADLINE_S, run

from ssd_cluster.api.mailbox import Mailbox
from ssd_cluster.target.request import Delta, Event, Finished, SpeculationStats
from ssd_cluster.types import FinishReason


def piece(token: int, choice: int = 0, finish: FinishReason | None = None) -> Delta:
    return Delta("r", choice, (token,), f"{token},", finish)


FINISHED = Finished("r", 1, 1, 0, SpeculationStats(), 0.0, 0.0)


async def everything(mailbox: Mailbox) -> list[Event]:
    events: list[Event] = []
    while not events or not isinstance(events[-1], Finished):
        event = await mailbox.get(DEADLINE_S)
        assert event is not None
        events.append(event)
    return events


def test_all_events_from_another_thread_arrive_in_order() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(asyncio.get_running_loop(), limit=10_000)
        sent: list[Event] = [*(piece(i) for i in range(5000)), FINISHED]
        thread = threading.Thread(target=lambda: [mailbox.put(e) for e in sent])
        thread.start()
        assert await everything(mailbox) == sent
        thread.join(DEADLINE_S)

    run(scenario())


def test_a_slow_reader_gets_joined_deltas_and_loses_nothing() -> None:
    async def scenario() -> None:
        mailbox = Mailbox(asyncio.get_running_loop(), limit=4)
        for i in range(100):
            mailbox.put(piece(i, choice=i % 3, finish=FinishReason.STOP if i >= 97 else None))
        mailbox.put(FINISHED)
        assert len(mailbox) <= 4 + 3 + 1
        deltas = [e for e in await everything(mailbox) if isinstance(e, Delta)]
        for choice in range(3):
            own = [d for d in deltas if d.choice == choice]
            expected = list(range(choice, 100, 3))
            assert [t for d in own for t in d.token_ids] == expected
            assert "".join(d.text for d in own) == "".join(f"{t}," for t in expected)
            assert [d.finish_reason for d in own] == [None] * (len(own) - 1) + [FinishReason.STOP]

    run(scenario())


def test_nothing_comes() -> None:
    async def scenario() -> None:
        assert await Mailbox(asyncio.get_running_loop()).get(0.001) is None

    run(scenario())


def test_the_engine_may_outlive_the_loop() -> None:
    async def make() -> Mailbox:
        return Mailbox(asyncio.get_running_loop())

    mailbox = run(make())
    mailbox.put(piece(1))
    mailbox.put(FINISHED)
    assert len(mailbox) == 2
