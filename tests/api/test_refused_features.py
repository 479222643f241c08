"""Features that are not served (logprobs, penalties, structured output, tools, adapters): 400 with the field's name, in
OpenAI's spelling and in that of other servers; nothing is scheduled, and the next request is served.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_engine import ScriptedEngine, make_app, post, say

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}

BOTH: dict[str, Any] = {
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.3,
    "logit_bias": {"7": -100},
    "logits_processors": ["x"],
    "prompt_logprobs": 1,
    "guided_json": SCHEMA,
    "guided_regex": "a+",
    "guided_choice": ["yes", "no"],
    "guided_grammar": "root ::= 'a'",
    "structured_outputs": {"json": SCHEMA},
    "lora": "adapter",
    "lora_request": {"lora_name": "adapter"},
    "lora_path": "adapter",
    "use_beam_search": True,
}
CHAT_ONLY: dict[str, Any] = {
    "logprobs": True,
    "top_logprobs": 0,
    "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    "tool_choice": "required",
    "reasoning_effort": "high",
}
TEXT_ONLY: dict[str, Any] = {"logprobs": 0, "echo": True, "suffix": "x"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields"), [(CHAT, BOTH | CHAT_ONLY), (TEXT, BOTH | TEXT_ONLY)], ids=["chat", "text"])
def test_refused_by_name_and_the_engine_never_hears_of_it(path: str, fields: dict[str, Any], stream: bool) -> None:
    engine = ScriptedEngine(say("served"))
    app = make_app(engine)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]} if path == CHAT else {"prompt": "x"}
    for field, value in fields.items():
        refusal = post(app, path, body | {"stream": stream, field: value})
        assert refusal.status_code == 400, field
        assert refusal.json()["error"]["param"] == field
    assert engine.requests == []
    assert post(app, path, body).status_code == 200
    assert len(engine.requests) == 1


def test_an_adapter_by_model_name_is_not_found_rather_than_served_by_the_base_model() -> None:
    engine = ScriptedEngine(say("x"))
    answer = post(make_app(engine), TEXT, {"prompt": "x", "model": "tiny-adapter"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "model")
    assert engine.requests == []
