"""Request bodies: what is taken over, what is refused and how the refusal names the field."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_engine import ScriptedEngine, make_app, post, say

from ssd_cluster.errors import ContextTooLong, EngineStopped, InvalidRequest, Overloaded
from ssd_cluster.target.request import GenerationRequest, SpeculativeOptions

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hi"}]


def submitted(path: str, **body: Any) -> GenerationRequest:
    engine = ScriptedEngine(say("x"))
    answer = post(make_app(engine), path, body)
    assert answer.status_code == 200, answer.text
    return engine.requests[0]


def chat(**body: Any) -> GenerationRequest:
    return submitted(CHAT, messages=HELLO, **body)


def refused(path: str, body: Any) -> dict[str, Any]:
    engine = ScriptedEngine(say("x"))
    answer = post(make_app(engine), path, body)
    assert answer.status_code == 400, answer.text
    assert engine.requests == []
    assert answer.json().keys() == {"error"}
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


def test_every_option_reaches_the_engine() -> None:
    request = chat(
        model="tiny",
        max_completion_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        min_p=0.1,
        min_tokens=2,
        seed=-3,
        stop=["a", "b"],
        stop_token_ids=[5],
        n=3,
        ignore_eos=True,
        speculative={"enabled": False, "num_speculative_tokens": 2},
        user="me",
    )
    p = request.params
    assert (p.max_tokens, p.temperature, p.top_p, p.top_k, p.min_p) == (7, 0.5, 0.9, 4, 0.1)
    assert (p.min_tokens, p.seed, p.stop, p.stop_token_ids, p.n, p.ignore_eos) == (2, -3, ("a", "b"), (5,), 3, True)
    assert request.speculative == SpeculativeOptions(enabled=False, num_speculative_tokens=2)
    assert "".join(map(chr, request.prompt_token_ids)) == "<user>hi"


def test_nothing_given_means_openais_defaults() -> None:
    p = chat().params
    assert (p.temperature, p.top_p, p.top_k, p.min_p, p.n, p.seed, p.stop) == (1.0, 1.0, 0, 0.0, 1, None, ())
    assert p.max_tokens == 100
    assert submitted(TEXT, prompt="hi").params.max_tokens == 16


def test_null_means_not_given() -> None:
    names = ["max_tokens", "temperature", "top_p", "top_k", "min_p", "min_tokens", "seed", "stop", "n", "stream"]
    names += ["logprobs", "top_logprobs", "tools", "tool_choice", "response_format", "logit_bias", "stream_options"]
    names += ["stop_token_ids", "ignore_eos", "speculative", "user", "model", "functions", "max_completion_tokens"]
    assert chat(**dict.fromkeys(names)).params == chat().params


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 0),
        ("frequency_penalty", 0.0),
        ("logprobs", False),
        ("response_format", {"type": "text"}),
        ("n", 1),
        ("logit_bias", {}),
        ("tools", []),
        ("tool_choice", "none"),
        ("store", False),
        ("modalities", ["text"]),
        ("service_tier", "auto"),
        ("top_k", -1),
        ("stop", []),
    ],
)
def test_neutral_values_pass(field: str, value: Any) -> None:
    assert chat(**{field: value}).params == chat().params


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 0.1),
        ("frequency_penalty", -1),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("top_logprobs", 0),
        ("response_format", {"type": "json_object"}),
        ("logit_bias", {"5": 1}),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "auto"),
        ("functions", [{"name": "f"}]),
        ("audio", {"voice": "x", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("prediction", {"type": "content", "content": "x"}),
        ("best_of", 2),
        ("store", True),
        ("reasoning_effort", "low"),
        ("web_search_options", {}),
        ("repetition_penalty", 1.1),
        ("metadata", {"a": "b"}),
    ],
)
def test_unsupported_chat_fields_are_named(field: str, value: Any) -> None:
    error = refused(CHAT, {"messages": HELLO, field: value})
    assert error["code"] == "unsupported_field"
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("logprobs", 0), ("logprobs", 1), ("echo", True), ("suffix", "end"), ("best_of", 3), ("logit_bias", {"1": 2})],
)
def test_unsupported_completion_fields_are_named(field: str, value: Any) -> None:
    error = refused(TEXT, {"prompt": "hi", field: value})
    assert (error["code"], error["param"]) == ("unsupported_field", field)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_unknown_fields_are_named(path: str) -> None:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    error = refused(path, body | {"temprature": 0})
    assert error["param"] == "temprature"
    assert "temprature" in error["message"]
    refused(path, body | {"\ud800": 0})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", 2.5),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("max_tokens", 0),
        ("max_tokens", "16"),
        ("max_tokens", 1.5),
        ("max_completion_tokens", 0),
        ("n", 0),
        ("n", 1000),
        ("seed", 1.5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("stop", 5),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [0x110000]),
        ("stop_token_ids", ["a"]),
        ("stream", "yes"),
        ("speculative", {"enabled": 1}),
        ("speculative", {"num_speculative_tokens": -1}),
        ("speculative", {"k": 1}),
        ("stream_options", {"include_usage": True}),
        ("stop", ["\ud800"]),
        ("messages", []),
        ("messages", "hi"),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "robot", "content": "x"}]),
        ("messages", [{"role": "tool", "content": "x", "tool_call_id": "1"}]),
        ("messages", [{"role": "user", "content": None}]),
        ("messages", [{"role": "user", "content": "\ud800"}]),
        ("messages", [{"role": "user", "content": "x", "name": "me"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "text"}]}]),
        ("messages", [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
        ("messages", [{"role": "assistant", "content": "the template refuses this"}]),
    ],
)
def test_wrong_values_are_named(field: str, value: Any) -> None:
    error = refused(CHAT, {"messages": HELLO, field: value})
    assert error["param"].split(".")[0] == field


@pytest.mark.parametrize(
    "prompt",
    ["", [], None, 5, ["a", "b"], [[1], [2]], [1, -1], [1, "a"], "\ud800", [True], [0x110000], {"a": 1}, [1.5]],
)
def test_prompts_that_cannot_be_served(prompt: Any) -> None:
    assert refused(TEXT, {"prompt": prompt})["param"].split(".")[0] == "prompt"


@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
def test_prompts_that_are_served(prompt: Any) -> None:
    assert submitted(TEXT, prompt=prompt).prompt_token_ids == (104, 105)


def test_a_missing_prompt_is_named() -> None:
    assert refused(TEXT, {})["param"] == "prompt"
    assert refused(CHAT, {})["param"] == "messages"


def test_text_parts_are_joined_and_developer_is_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": parts}]
    request = submitted(CHAT, messages=messages)
    assert "".join(map(chr, request.prompt_token_ids)) == "<system>d<user>a\nb"


def test_an_answer_can_be_sent_back_as_history() -> None:
    answer = {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None, "annotations": []}
    request = submitted(CHAT, messages=[*HELLO, answer, {"role": "user", "content": "why"}])
    assert "".join(map(chr, request.prompt_token_ids)) == "<user>hi<assistant>yes<user>why"


def test_limits_that_contradict_each_other() -> None:
    assert refused(CHAT, {"messages": HELLO, "max_tokens": 3, "max_completion_tokens": 4})["param"] == "max_tokens"
    assert chat(max_tokens=3, max_completion_tokens=3).params.max_tokens == 3


def test_default_limit_is_clipped_to_the_context_and_an_explicit_one_is_not() -> None:
    long = [{"role": "user", "content": "x" * 150}]
    assert submitted(CHAT, messages=long).params.max_tokens == 200 - 156
    error = refused(CHAT, {"messages": long, "max_tokens": 45})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    error = refused(CHAT, {"messages": long, "max_completion_tokens": 45})
    assert error["param"] == "max_completion_tokens"
    assert submitted(CHAT, messages=long, max_tokens=44).params.max_tokens == 44


def test_a_prompt_beyond_the_context() -> None:
    error = refused(TEXT, {"prompt": "x" * 200, "max_tokens": 1})
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert submitted(TEXT, prompt="x" * 199, max_tokens=1).params.max_tokens == 1


@pytest.mark.parametrize("raw", [b"{", b"[]", b"", b'"x"', b"\xff\xfe", b'{"prompt": ' + b"9" * 5000 + b"}"])
def test_bodies_that_are_no_json_object(raw: bytes) -> None:
    answer = post(make_app(ScriptedEngine(say("x"))), TEXT, raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_nan_is_refused() -> None:
    answer = post(make_app(ScriptedEngine(say("x"))), TEXT, b'{"prompt": "x", "top_p": NaN}')
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "top_p"


def test_another_model_is_not_found() -> None:
    answer = post(make_app(ScriptedEngine(say("x"))), CHAT, {"messages": HELLO, "model": "gpt-9"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("queue full"), 429),
        (EngineStopped("stopping"), 503),
        (ContextTooLong("too long", param="max_tokens"), 400),
        (InvalidRequest("no", param="n"), 400),
        (RuntimeError("secret detail"), 500),
    ],
)
def test_the_engines_refusal_is_the_status(error: Exception, status: int, stream: bool) -> None:
    engine = ScriptedEngine(say("x"), refuse=error)
    answer = post(make_app(engine), CHAT, {"messages": HELLO, "stream": stream})
    assert answer.status_code == status
    assert "secret" not in answer.text
    assert answer.headers["content-type"] == "application/json"
    assert ("retry-after" in answer.headers) == (status == 429)
    assert engine.aborted == []
