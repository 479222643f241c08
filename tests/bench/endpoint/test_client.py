"""The client of endpoints against a server that fails in the ways that servers do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.sse_server import TOKENS_PER_PART, sse_server

from ssd_cluster.bench.endpoint.client import Answer, Client, Endpoint, ask_all, checked_url, read_api_key
from ssd_cluster.bench.handle import Workload
from ssd_cluster.errors import ConfigError, EngineStopped


def work(*prompts: str, **more: object) -> Workload:
    return Workload(prompts=prompts, **({"max_tokens": 16} | more))


def asked(url: str, workload: Workload, key: str | None = None) -> list[Answer]:
    async def talk() -> list[Answer]:
        async with Client(Endpoint(url, api_key=key, timeout_s=20.0)) as client:
            model = await client.model()
            return [await client.ask(model, workload, i) for i in range(len(workload.prompts))]

    return asyncio.run(talk())


def test_tokens_are_those_of_usage_not_of_parts() -> None:
    with sse_server() as (url, bodies):
        (answer,) = asked(url, work("hello", temperature=0.5, seed=7, top_k=4, ignore_eos=True))
    assert answer.error is None
    assert len(answer.parts_s) == 2, "the empty part with the role holds no text"
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 2 * TOKENS_PER_PART)
    assert answer.asked_s < answer.parts_s[0] <= answer.parts_s[1]
    (body,) = bodies
    assert body["path"] == "/v1/chat/completions"
    assert body["model"] == "scripted"
    assert (body["temperature"], body["seed"], body["top_k"], body["ignore_eos"]) == (0.5, 7, 4, True)
    assert body["stream_options"] == {"include_usage": True}


def test_raw_prompts_go_to_completions_and_carry_no_extensions() -> None:
    with sse_server() as (url, bodies):
        answers = asked(f"{url}/v1/", work("hello", "there", raw=True))
    assert [answer.error for answer in answers] == [None, None]
    assert [body["path"] for body in bodies] == ["/v1/completions"] * 2
    assert [body["seed"] for body in bodies] == [0, 1]
    assert not {"top_k", "ignore_eos"} & bodies[0].keys()


def test_failures_are_told_apart() -> None:
    with sse_server() as (url, _):
        kinds = [answer.error for answer in asked(url, work("busy", "cut", "uncounted", "broken"))]
        assert kinds == ["status 429", "cut off", "no usage", "error event"]
        with pytest.raises(EngineStopped, match="prompt 1 failed: no usage"):
            asyncio.run(_all(url, work("hello", "uncounted")))
    answer = asyncio.run(_one(url, work("hello")))
    assert answer.error == "connection", "the server is gone"


async def _all(url: str, workload: Workload) -> list[Answer]:
    async with Client(Endpoint(url)) as client:
        return await ask_all(client, "scripted", workload)


async def _one(url: str, workload: Workload) -> Answer:
    async with Client(Endpoint(url)) as client:
        return await client.ask("scripted", workload, 0)


def test_keys_come_from_files_and_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# mine\n\nsecret\nother\n")
    file.chmod(0o600)
    key = read_api_key(file)
    assert key == "secret"
    assert "secret" not in repr(Endpoint("http://x", api_key=key))
    assert read_api_key(None) is None
    with sse_server(key="secret") as (url, _):
        assert asked(url, work("hello"), key)[0].error is None
        with pytest.raises(ConfigError, match="401"):
            asked(url, work("hello"))
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        read_api_key(file)


@pytest.mark.parametrize("text", ["127.0.0.1:8000", "ftp://x", "http://"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no URL"):
        checked_url(text)
