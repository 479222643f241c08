"""Replicas without Ray: target and draft services in one process, over gRPC and in-process, behind the HTTP app."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.lessors import BookLessor
from support.live_cluster import Reference, until, write_checkpoints

from ssd_cluster.config import DraftSettings
from ssd_cluster.errors import ConfigError, EngineStopped, LinkError
from ssd_cluster.serve.args import TargetAppArgs
from ssd_cluster.serve.draft_service import DraftService
from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.serve.target_service import TargetService

DEADLINE_S = 60.0
HELLO = [{"role": "user", "content": "once upon a time"}]


class Pair:
    """Settings of a tiny pair and the services started from them."""

    def __init__(self, folder: Path) -> None:
        self.checkpoints = write_checkpoints(folder)
        draft, target = (app.args for app in read_serve_file(self.checkpoints.file).applications)
        assert draft.draft is not None
        assert target.target is not None
        self.draft_settings: DraftSettings = draft.draft.engine_settings
        self.target_args: TargetAppArgs = target.target
        self._closing: list[Callable[[], None]] = []

    def draft(self) -> DraftService:
        service = DraftService(self.draft_settings, replica=f"d{len(self._closing)}")
        self._closing.append(service.close)
        return service

    def target(self, find_draft: Callable[[], DraftService] | None = None, **changes: Any) -> TargetService:
        args = TargetAppArgs.model_validate(self.target_args.model_dump() | changes)
        service = TargetService(args, "r0", BookLessor(find_draft) if find_draft is not None else None)
        self._closing.append(service.close)
        return service

    def close(self) -> None:
        for close in reversed(self._closing):
            close()
        self._closing.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("services")


@pytest.fixture
def pair(folder: Path) -> Iterator[Pair]:
    made = Pair(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    """What plain decoding says to HELLO."""
    engine = Reference(write_checkpoints(folder).target)
    try:
        prompt = engine.tokenizer.apply_chat_template(HELLO)
        return engine.texts(prompt, max_tokens=40, temperature=0.9, seed=5, ignore_eos=True)[0]
    finally:
        engine.close()


def ask(service: TargetService, **params: Any) -> dict[str, Any]:
    body = {"messages": HELLO, "max_tokens": 40, "temperature": 0.9, "seed": 5, "ignore_eos": True, **params}

    async def post() -> dict[str, Any]:
        transport = httpx.ASGITransport(app=service.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/v1/chat/completions", json=body, timeout=DEADLINE_S)
            assert answer.status_code == 200, answer.text
            whole: dict[str, Any] = answer.json()
            return whole

    return asyncio.run(post())


def said(answer: dict[str, Any]) -> tuple[str, bool]:
    """Text of an answer, and whether a draft had a part in it."""
    drafted = answer["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    return answer["choices"][0]["message"]["content"], drafted


def held(draft: DraftService) -> dict[str, Any]:
    """What sessions hold on a draft."""
    return {name: draft.status()[name] for name in ("sessions", "leases", "rows", "free_blocks", "free_tails")}


def ready(service: TargetService) -> None:
    assert service._engine.wait_for_draft(DEADLINE_S)


def test_plain_decoding(pair: Pair, text: str) -> None:
    assert said(ask(pair.target(mode="ar", draft_application=None))) == (text, False)


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_draft_inside_the_replica(pair: Pair, text: str, mode: str) -> None:
    service = pair.target(mode=mode, draft_application=None, in_process_draft=pair.draft_settings.model_dump())
    ready(service)
    assert said(ask(service)) == (text, True)


def test_a_draft_is_found_again_at_its_new_endpoint(pair: Pair, text: str) -> None:
    first = pair.draft()
    drafts = [first]
    service = pair.target(lambda: drafts[-1])
    ready(service)
    assert said(ask(service)) == (text, True)
    first.close()
    until(lambda: "ready" not in service.status()["drafts"], "the loss is noticed", DEADLINE_S)
    service.check()
    assert said(ask(service))[0] == text
    second = pair.draft()
    drafts.append(second)
    ready(service)
    assert second.endpoint()["incarnation"] != first.endpoint()["incarnation"]
    assert said(ask(service)) == (text, True)


def test_user_config_changes_a_running_answer_and_not_its_text(pair: Pair, folder: Path) -> None:
    long = {"max_tokens": 240, "temperature": 0.9, "seed": 5, "ignore_eos": True}
    engine = Reference(pair.checkpoints.target)
    expected = engine.texts(engine.tokenizer.apply_chat_template(HELLO), **long)[0]
    engine.close()
    draft = pair.draft()
    service = pair.target(lambda: draft)
    ready(service)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, service, **long)
        until(lambda: service.status()["running"] == 1, "it runs", DEADLINE_S)
        seen = []
        for k in itertools.cycle((1, 4, 2)):
            service.reconfigure({"speculation": {"k": k, "rows": 2 + k}})
            until(lambda k=k: service.status()["speculation"]["k"] == k, f"k = {k} is in force", DEADLINE_S)
            if answer.done():
                break
            seen.append(k)
        assert len(seen) >= 3, "no change fell into the answer"
        assert said(answer.result()) == (expected, True)
    with pytest.raises(ConfigError, match="kind: cannot change in place"):
        service.reconfigure({"speculation": {"k": 3, "kind": "dense"}})
    assert service.status()["speculation"]["k"] == k
    service.reconfigure({})
    until(lambda: service.status()["speculation"]["k"] == 3, "all is as in the arguments", DEADLINE_S)
    draft.reweigh({"tiny": 2.0})
    assert said(ask(service, **long)) == (expected, True)


def test_a_draft_that_cannot_be_found_is_done_without(pair: Pair, text: str) -> None:
    asked = []

    def nowhere() -> DraftService:
        asked.append(1)
        raise LinkError("no such application")

    service = pair.target(nowhere)
    assert said(ask(service)) == (text, False)
    service.check()

    def again() -> bool:
        ask(service)
        return len(asked) > 1

    until(again, "it is looked for again", DEADLINE_S)


def test_two_hundred_aborts_leave_nothing_on_target_and_draft(pair: Pair) -> None:
    draft = pair.draft()
    service = pair.target(lambda: draft)
    ready(service)
    ask(service)
    until(lambda: draft.status()["sessions"] == 0, "the first answer's session is closed", DEADLINE_S)
    target_before, draft_before = service.status(), held(draft)
    rng = random.Random(0)

    async def one(client: httpx.AsyncClient) -> None:
        body = {"messages": HELLO, "max_tokens": 400, "ignore_eos": True, "n": rng.randint(1, 3)}
        task = asyncio.ensure_future(client.post("/v1/chat/completions", json=body, timeout=DEADLINE_S))
        await asyncio.sleep(rng.random() * 0.1)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    async def storm() -> None:
        transport = httpx.ASGITransport(app=service.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for _ in range(20):
                await asyncio.gather(*(one(client) for _ in range(10)))

    asyncio.run(storm())
    until(lambda: service.status()["requests"] == 0, "every request has ended", DEADLINE_S)
    after = service.status()
    assert after["free_blocks"] == target_before["free_blocks"]
    assert not any(after["sessions"].values())
    until(lambda: service.status()["leases"] == {"held": 0, "waiting": 0}, "the leases are back", DEADLINE_S)
    until(lambda: held(draft) == draft_before, "the draft has freed everything", DEADLINE_S)
    assert said(ask(service))[1]


def test_a_stopped_service_is_unhealthy_and_may_be_closed_twice(pair: Pair) -> None:
    draft = pair.draft()
    service = pair.target(lambda: draft)
    service.close()
    service.close()
    with pytest.raises(EngineStopped):
        service.check()
    draft.check()
    draft.close()
    draft.close()
    with pytest.raises(EngineStopped):
        draft.check()
