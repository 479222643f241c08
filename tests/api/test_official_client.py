"""The official client reads what we send: answers, streams, errors."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from support.scripted_engine import SPECULATION, ScriptedEngine, broken, interleaved, make_app, run, say

from ssd_cluster.errors import EngineStopped

HELLO: Any = [{"role": "user", "content": "hi"}]


def client_of(engine: ScriptedEngine) -> openai.AsyncOpenAI:
    transport = httpx.ASGITransport(app=make_app(engine))
    http = httpx.AsyncClient(transport=transport)
    return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)


def test_official_client_reads_whole_answers() -> None:
    async def talk() -> None:
        client = client_of(ScriptedEngine(interleaved))
        chat = await client.chat.completions.create(model="tiny", messages=HELLO, n=3, stop="END", seed=1)
        assert [c.message.content for c in chat.choices] == ["a1a2", "b1b2", "c"]
        assert [c.finish_reason for c in chat.choices] == ["stop", "length", "stop"]
        assert chat.usage is not None
        assert (chat.usage.completion_tokens, chat.usage.total_tokens) == (9, 17)
        assert chat.usage.completion_tokens_details is not None
        assert chat.usage.completion_tokens_details.accepted_prediction_tokens is None
        assert chat.model_extra is not None
        assert chat.model_extra["metrics"]["speculative_decoding"] == SPECULATION
        history: Any = [*HELLO, chat.choices[0].message, {"role": "user", "content": "go on"}]
        await client.chat.completions.create(model="tiny", messages=history, n=3)
        text = await client.completions.create(model="tiny", prompt="x", n=3)
        assert [c.text for c in text.choices] == ["a1a2", "b1b2", "c"]
        assert [m.id async for m in client.models.list()] == ["tiny"]

    run(talk())


def test_official_client_reads_streams() -> None:
    async def talk() -> None:
        client = client_of(ScriptedEngine(interleaved))
        stream = await client.chat.completions.create(
            model="tiny", messages=HELLO, n=3, stream=True, stream_options={"include_usage": True}
        )
        texts, finishes, usages = ["", "", ""], {}, []
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    finishes[choice.index] = choice.finish_reason
            if chunk.usage is not None:
                usages.append(chunk)
        assert texts == ["a1a2", "b1b2", "c"]
        assert finishes == {0: "stop", 1: "length", 2: "stop"}
        assert [u.usage.total_tokens for u in usages] == [17]
        assert usages[0].model_extra["metrics"]["speculative_decoding"] == SPECULATION

        text = await client.completions.create(model="tiny", prompt="x", stream=True)
        assert "".join([c.choices[0].text async for c in text if c.choices[0].index == 0]) == "a1a2"

    run(talk())


def test_official_client_raises_on_errors() -> None:
    async def talk() -> None:
        client = client_of(ScriptedEngine(broken))
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(model="tiny", messages=HELLO, logprobs=True)
        assert refusal.value.param == "logprobs"
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=HELLO)
        stream = await client.chat.completions.create(model="tiny", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="device lost"):
            async for _ in stream:
                pass
        with pytest.raises(openai.InternalServerError):
            await client_of(ScriptedEngine(say("x"), refuse=EngineStopped("no"))).completions.create(
                model="tiny", prompt="x"
            )

    run(talk())
