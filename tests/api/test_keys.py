"""API keys: who is answered, what the others are told, and that no key shows up anywhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from support.certificates import write_secrets
from support.scripted_engine import ScriptedEngine, make_app, run, say

from ssd_cluster.api.keys import ApiKeys
from ssd_cluster.errors import ConfigError
from ssd_cluster.metrics import TargetMetrics

KEY = "sk-0123456789abcdef"
SECOND = "sk-second-key-of-somebody"
HELLO: Any = [{"role": "user", "content": "hi"}]
BODY = {"messages": HELLO}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return write_secrets(tmp_path / "keys", KEY, SECOND)


@pytest.fixture
def metrics() -> TargetMetrics:
    return TargetMetrics(CollectorRegistry())


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(say("x"))


@pytest.fixture
def app(engine: ScriptedEngine, key_file: Path, metrics: TargetMetrics) -> FastAPI:
    return make_app(engine, keys=ApiKeys(key_file, metrics.unauthorized.inc), registry=metrics.registry)


def request(app: FastAPI, method: str, path: str, authorization: str | None = None, **more: Any) -> httpx.Response:
    headers = {} if authorization is None else {"authorization": authorization}

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            return await client.request(method, path, headers=headers, **more)

    answer: httpx.Response = run(ask())
    return answer


def refusals(metrics: TargetMetrics) -> float | None:
    return metrics.registry.get_sample_value("ssd:unauthorized_requests_total")


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer  {SECOND} "])
def test_a_key_opens(app: FastAPI, authorization: str, metrics: TargetMetrics) -> None:
    assert request(app, "POST", "/v1/chat/completions", authorization, json=BODY).status_code == 200
    assert request(app, "GET", "/v1/models", authorization).status_code == 200
    assert request(app, "GET", "/metrics", authorization).status_code == 200
    assert refusals(metrics) == 0


@pytest.mark.parametrize(
    ("authorization", "says"),
    [
        (None, "no API key"),
        ("", "no API key"),
        ("Bearer", "no API key"),
        ("Bearer   ", "no API key"),
        (f"Basic {KEY}", "no API key"),
        (KEY, "no API key"),
        ("Bearer wrong-key-wrong-key", "incorrect API key"),
        (f"Bearer {KEY}x", "incorrect API key"),
        (f"Bearer {KEY[:-1]}", "incorrect API key"),
        (f"Bearer {KEY} {SECOND}", "incorrect API key"),
        ("Bearer # made for a test", "incorrect API key"),
    ],
)
def test_everything_else_is_refused_in_openais_form(
    app: FastAPI, engine: ScriptedEngine, metrics: TargetMetrics, authorization: str | None, says: str
) -> None:
    paths = [("POST", "/v1/chat/completions"), ("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/metrics")]
    paths += [("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/nowhere"), ("GET", "//health"), ("GET", "/health/")]
    for method, path in paths:
        answer = request(app, method, path, authorization, content=b"{broken" if method == "POST" else None)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, "invalid_api_key")
        assert says in error["message"]
    assert engine.requests == []
    assert refusals(metrics) == len(paths)


def test_health_needs_no_key_also_below_a_prefix(app: FastAPI) -> None:
    assert request(app, "GET", "/health").json() == {"status": "ok"}
    outer = FastAPI()
    outer.mount("/small", app)
    assert request(outer, "GET", "/small/health").status_code == 200
    assert request(outer, "GET", "/small/v1/models").status_code == 401
    assert request(outer, "GET", "/small/v1/models", f"Bearer {KEY}").status_code == 200


def test_bytes_that_are_no_text_are_a_wrong_key(app: FastAPI) -> None:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            return await client.get("/v1/models", headers=[(b"authorization", b"Bearer \xff\xfe\xfd")])

    assert run(ask()).status_code == 401


def test_without_keys_nothing_is_asked_for(engine: ScriptedEngine) -> None:
    assert request(make_app(engine), "POST", "/v1/chat/completions", json=BODY).status_code == 200


def test_the_official_client_raises_its_authentication_error(app: FastAPI) -> None:
    def client(key: str) -> openai.AsyncOpenAI:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        return openai.AsyncOpenAI(base_url="http://test/v1", api_key=key, http_client=http, max_retries=0)

    async def talk() -> None:
        answer = await client(KEY).chat.completions.create(model="tiny", messages=HELLO)
        assert answer.choices[0].message.content == "x"
        with pytest.raises(openai.AuthenticationError, match="incorrect API key") as caught:
            await client("sk-nobody").chat.completions.create(model="tiny", messages=HELLO)
        assert caught.value.code == "invalid_api_key"

    run(talk())


def test_keys_are_exchanged_in_service(app: FastAPI, key_file: Path) -> None:
    new = "sk-new-key-new-key-new"
    assert request(app, "GET", "/v1/models", f"Bearer {new}").status_code == 401
    write_secrets(key_file, new)
    assert request(app, "GET", "/v1/models", f"Bearer {new}").status_code == 200
    assert request(app, "GET", "/v1/models", f"Bearer {KEY}").status_code == 401


def test_no_key_shows_up_in_logs_or_answers(app: FastAPI, key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    near = KEY + "-and-more"
    answer = request(app, "GET", "/v1/models", f"Bearer {near}")
    write_secrets(key_file, KEY, "short")
    broken = request(app, "GET", "/v1/models", f"Bearer {KEY}")  # the old keys stay
    assert broken.status_code == 200
    said = caplog.text + answer.text + str(answer.headers) + repr(vars(ApiKeys(write_secrets(key_file, KEY), int)))
    assert "request refused peer=127.0.0.1 reason=wrong_key" in said
    assert "secrets kept as they were: http.api_keys_file: line 4 of" in said
    assert KEY not in said
    assert "short" not in said


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"http\.api_keys_file: cannot read .*nothing: No such file"):
        ApiKeys(tmp_path / "nothing", int)
    with pytest.raises(ConfigError, match=r"http\.api_keys_file: cannot read .*: Is a directory"):
        ApiKeys(tmp_path, int)
