"""Answers, streamed and whole, read raw and through the official client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from support.scripted_engine import (
    SPECULATION,
    ScriptedEngine,
    Step,
    broken,
    delta,
    finished,
    get,
    interleaved,
    make_app,
    post,
    say,
)

from ssd_cluster.metrics import TargetMetrics
from ssd_cluster.target.request import GenerationRequest
from ssd_cluster.types import FinishReason

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO: Any = [{"role": "user", "content": "hi"}]


def events_of(text: str) -> list[Any]:
    """Data of every event; the end marker as the string it is."""
    assert text.endswith("\n\n")
    lines = text[:-2].split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def streamed(engine: ScriptedEngine, path: str = CHAT, **body: Any) -> list[Any]:
    prompt = {"messages": HELLO} if path == CHAT else {"prompt": "hi"}
    answer = post(make_app(engine), path, prompt | {"stream": True} | body)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers
    return events_of(answer.text)


def test_whole_chat_answer() -> None:
    body = post(make_app(ScriptedEngine(say("Hel", "lo"))), CHAT, {"messages": HELLO}).json()
    assert body["id"].startswith("chatcmpl-")
    assert (body["object"], body["model"], body["system_fingerprint"]) == ("chat.completion", "tiny", "fp")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 5,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"accepted_prediction_tokens": None, "rejected_prediction_tokens": None},
    }
    assert body["metrics"] == {"speculative_decoding": SPECULATION}


def test_whole_completion() -> None:
    body = post(make_app(ScriptedEngine(say("a", finish=FinishReason.LENGTH))), TEXT, {"prompt": "x"}).json()
    assert (body["object"], body["id"][:5]) == ("text_completion", "cmpl-")
    assert body["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    ]
    assert body["usage"]["total_tokens"] == 2


def test_one_chunk_per_burst_with_role_first_and_finish_last() -> None:
    chunks = streamed(ScriptedEngine(say("Hel", "lo wor", "ld")))
    assert chunks.pop() == "[DONE]"
    assert [c["choices"][0]["delta"] for c in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo wor"},
        {"content": "ld"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 4 + ["stop"]
    assert len({(c["id"], c["created"], c["model"], c["object"]) for c in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in c and "metrics" not in c for c in chunks)


def test_completion_chunks() -> None:
    chunks = streamed(ScriptedEngine(say("Hel", "lo")), TEXT)
    assert chunks.pop() == "[DONE]"
    assert [(c["choices"][0]["text"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ("Hel", None),
        ("lo", None),
        ("", "stop"),
    ]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_usage_and_metrics_ride_on_the_last_chunk(path: str) -> None:
    chunks = streamed(ScriptedEngine(say("abc", "de")), path, stream_options={"include_usage": True})
    assert chunks[-1] == "[DONE]"
    last = chunks[-2]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] is None
    assert last["metrics"] == {"speculative_decoding": SPECULATION}
    assert all(c["usage"] is None and "metrics" not in c for c in chunks[:-2])


def test_held_back_text_makes_no_empty_chunk() -> None:
    chunks = streamed(ScriptedEngine(say("", "é", "")))
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [
        {"role": "assistant", "content": ""},
        {"content": "é"},
        {},
    ]


def test_stop_reason_is_told() -> None:
    def script(request: GenerationRequest) -> Iterable[Step]:
        yield delta(request, "a", finish=FinishReason.STOP, stop_reason="END")
        yield finished(request, 1)

    assert streamed(ScriptedEngine(script))[-2]["choices"][0]["stop_reason"] == "END"
    body = post(make_app(ScriptedEngine(script)), CHAT, {"messages": HELLO}).json()
    assert body["choices"][0]["stop_reason"] == "END"


def test_choices_are_kept_apart() -> None:
    body = post(make_app(ScriptedEngine(interleaved)), CHAT, {"messages": HELLO, "n": 3}).json()
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "a1a2", "stop"),
        (1, "b1b2", "length"),
        (2, "c", "stop"),
    ]
    chunks = streamed(ScriptedEngine(interleaved), n=3)
    assert chunks.pop() == "[DONE]"
    for index, text, finish in [(0, "a1a2", "stop"), (1, "b1b2", "length"), (2, "c", "stop")]:
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in own) == text
        assert [c["finish_reason"] for c in own] == [None] * (len(own) - 1) + [finish]


def test_unicode_passes_unescaped_and_line_ends_do_not_break_events() -> None:
    text = "👩‍👩‍👧 漢字\n\ndata: [DONE]\r\n\u2028é"
    chunks = streamed(ScriptedEngine(say(text, text)))
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1]) == text * 2
    raw = post(make_app(ScriptedEngine(say("漢"))), CHAT, {"messages": HELLO, "stream": True}).content
    assert "漢".encode() in raw


def stopped(request: GenerationRequest) -> Iterable[Step]:
    yield delta(request, "a")
    yield delta(request, "", finish=FinishReason.ABORT)
    yield finished(request, 1)


@pytest.mark.parametrize("script", [broken, stopped])
def test_an_error_mid_stream_is_the_last_event(script: Any) -> None:
    chunks = streamed(ScriptedEngine(script), stream_options={"include_usage": True})
    assert chunks[-1].keys() == {"error"}
    assert (chunks[-1]["error"]["code"], chunks[-1]["error"]["type"]) == ("engine_stopped", "service_unavailable_error")
    assert [c["choices"][0]["delta"] for c in chunks[:-1]] == [{"role": "assistant", "content": ""}, {"content": "a"}]


@pytest.mark.parametrize("script", [broken, stopped])
def test_an_error_of_a_whole_answer_is_its_status(script: Any) -> None:
    answer = post(make_app(ScriptedEngine(script)), CHAT, {"messages": HELLO})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_stopped"


def test_an_error_before_the_first_token_of_a_stream_is_its_status() -> None:
    engine = ScriptedEngine(lambda request: [finished(request, 0, error="device lost")])
    answer = post(make_app(engine), CHAT, {"messages": HELLO, "stream": True})
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "device lost"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_hangs_is_given_up(stream: bool) -> None:
    engine = ScriptedEngine(lambda request: [delta(request, "a"), threading.Event()])
    engine.is_healthy = False
    app = make_app(engine, health_check_s=0.01)
    answer = post(app, CHAT, {"messages": HELLO, "stream": stream})
    error = events_of(answer.text)[-1] if stream else answer.json()
    assert error["error"]["code"] == "engine_stopped"
    assert engine.aborted == [engine.requests[0].request_id]


def test_nothing_is_aborted_after_a_regular_end() -> None:
    engine = ScriptedEngine(say("a", "b"))
    streamed(engine)
    post(make_app(engine), CHAT, {"messages": HELLO})
    assert len(engine.requests) == 2
    assert engine.aborted == []


def test_models_health_and_unknown_paths() -> None:
    engine = ScriptedEngine(say("x"))
    app = make_app(engine)
    models = get(app, "/v1/models").json()
    assert models["object"] == "list"
    assert [(m["id"], m["object"], m["max_model_len"]) for m in models["data"]] == [("tiny", "model", 200)]
    assert get(app, "/v1/models/tiny").json() == models["data"][0]
    assert get(app, "/v1/models/other").status_code == 404
    assert get(app, "/health").status_code == 200
    engine.is_healthy = False
    assert get(app, "/health").status_code == 503
    for path, status in [("/v1/nothing", 404), ("/v1/chat/completions", 405)]:
        answer = get(app, path)
        assert answer.status_code == status
        assert answer.json()["error"].keys() == {"message", "type", "param", "code"}


def test_metrics_carry_the_replica() -> None:
    metrics = TargetMetrics()
    metrics.drafts.inc(3)
    metrics.lookups.labels("hit").inc(2)
    text = get(make_app(ScriptedEngine(say("x")), registry=metrics.registry), "/metrics").text
    assert 'vllm:spec_decode_num_drafts_total{model_name="tiny",replica="r0"} 3.0' in text
    assert 'ssd:cache_lookups_total{model_name="tiny",replica="r0",result="hit"} 2.0' in text
