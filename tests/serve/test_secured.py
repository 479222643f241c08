"""Target and draft services that know each other by certificate and token; strangers do without the draft."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.certificates import Authority, write_secrets
from support.lessors import BookLessor
from support.live_cluster import Checkpoints, Reference, until, write_checkpoints

from ssd_cluster.config import DraftSettings, LinkSettings
from ssd_cluster.errors import ConfigError
from ssd_cluster.serve.args import TargetAppArgs
from ssd_cluster.serve.draft_service import DraftService
from ssd_cluster.serve.files import read_serve_file
from ssd_cluster.serve.target_service import TargetService

DEADLINE_S = 60.0
HELLO = [{"role": "user", "content": "once upon a time"}]
TOKEN, WRONG, KEY = "the-token-of-the-pool", "some-token-or-other", "the-api-key-of-a-client"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return write_checkpoints(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def text(checkpoints: Checkpoints) -> str:
    with closing(Reference(checkpoints.target)) as engine:
        prompt = engine.tokenizer.apply_chat_template(HELLO)
        return engine.texts(prompt, max_tokens=24, temperature=0.9, seed=5, ignore_eos=True)[0]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def draft(checkpoints: Checkpoints, stack: ExitStack, link: LinkSettings, **changes: Any) -> DraftService:
    (settings,) = (app.args.draft for app in read_serve_file(checkpoints.file).applications if app.args.draft)
    changed = settings.engine_settings.model_dump() | changes | {"link": link.model_dump()}
    service = DraftService(DraftSettings.model_validate(changed), replica="d")
    stack.callback(service.close)
    return service


def target(
    checkpoints: Checkpoints, stack: ExitStack, link: LinkSettings, find: DraftService | None, **changes: Any
) -> TargetService:
    (args,) = (app.args.target for app in read_serve_file(checkpoints.file).targets if app.args.target)
    changed = TargetAppArgs.model_validate(args.model_dump() | changes | {"link": link.model_dump()})
    service = TargetService(changed, "r0", BookLessor(lambda: find) if find is not None else None)
    stack.callback(service.close)
    return service


def ask(service: TargetService, key: str | None = None) -> httpx.Response:
    body = {"messages": HELLO, "max_tokens": 24, "temperature": 0.9, "seed": 5, "ignore_eos": True}
    headers = {} if key is None else {"authorization": f"Bearer {key}"}

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(app=service.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            return await client.post("/v1/chat/completions", json=body, timeout=DEADLINE_S)

    return asyncio.run(post())


def said(answer: httpx.Response) -> tuple[str, bool]:
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    drafted = whole["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    return whole["choices"][0]["message"]["content"], drafted


def test_certificates_token_and_api_key_together(
    checkpoints: Checkpoints, text: str, tmp_path: Path, opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    authority = Authority(tmp_path)
    token = write_secrets(tmp_path / "token", TOKEN)
    keys = write_secrets(tmp_path / "keys", KEY)
    guarded = LinkSettings(tls=authority.issue("draft", usage="server"), token_file=token)
    mine = LinkSettings(tls=authority.issue("target", usage="client"), token_file=token)
    drafts = draft(checkpoints, opened, guarded, host="0.0.0.0")
    endpoint = drafts.endpoint()["endpoint"]
    assert endpoint.startswith("127.0.0.1:")  # not 0.0.0.0, which nobody can connect to
    service = target(checkpoints, opened, mine, drafts, http={"api_keys_file": str(keys)})
    assert service._engine.wait_for_draft(DEADLINE_S)
    assert said(ask(service, KEY)) == (text, True)
    assert ask(service).status_code == ask(service, "another-key-altogether").status_code == 401
    assert service.metrics.registry.get_sample_value("ssd:unauthorized_requests_total") == 2
    shown = caplog.text + repr(service.status()) + repr(drafts.status())
    assert TOKEN not in shown
    assert KEY not in shown


def test_a_target_with_a_wrong_token_answers_without_drafts(
    checkpoints: Checkpoints, text: str, tmp_path: Path, opened: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    drafts = draft(checkpoints, opened, LinkSettings(token_file=write_secrets(tmp_path / "right", TOKEN)))
    wrong = write_secrets(tmp_path / "wrong", WRONG)
    mine = LinkSettings(token_file=wrong)
    service = target(checkpoints, opened, mine, drafts, breaker={"retry_s": 0.05})

    def refusals() -> float:
        return (
            drafts.metrics.registry.get_sample_value("ssd:draft_refused_streams_total", {"reason": "wrong_token"}) or 0
        )

    until(lambda: ask(service) and refusals() >= 2, "it is refused, and tries again later", DEADLINE_S)
    assert said(ask(service)) == (text, False)
    service.check()
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert sum("draft_unreachable" in line and "does not know this token" in line for line in lines) == 1
    assert sum("stream refused" in line for line in lines) == 1
    assert WRONG not in caplog.text
    write_secrets(wrong, TOKEN)
    assert service._engine.wait_for_draft(DEADLINE_S), "the corrected file is read"
    assert said(ask(service)) == (text, True)


def test_a_replica_does_not_start_with_files_that_cannot_be_used(
    checkpoints: Checkpoints, tmp_path: Path, opened: ExitStack
) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"http\.api_keys_file: cannot read"):
        target(checkpoints, opened, LinkSettings(), None, http={"api_keys_file": missing})
    with pytest.raises(ConfigError, match=r"link\.token_file: cannot read"):
        draft(checkpoints, opened, LinkSettings.model_validate({"token_file": missing}))
    expired = Authority(tmp_path).issue("old", days=-2)
    with pytest.raises(ConfigError, match="certificate has expired"):
        draft(checkpoints, opened, LinkSettings(tls=expired))
