"""Target and draft in processes of their own, over real HTTP: the text of plain decoding, whatever drafts do."""

from __future__ import annotations

import ipaddress
import os
import signal
from typing import Any

import httpx
import psutil
import pytest
from support.live_cluster import Live, Reference, add_text, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HELLO = [{"role": "user", "content": "once upon a time"}]
SAMPLING = [
    {"temperature": 0.0},
    {"temperature": 0.7, "seed": 7},
    {"temperature": 1.0, "seed": 11, "top_p": 0.9, "top_k": 20},
]


def expected(reference: Reference, n_tokens: int, **params: Any) -> list[str]:
    prompt = reference.tokenizer.apply_chat_template(HELLO)
    return reference.texts(prompt, max_tokens=n_tokens, **params)


@pytest.mark.parametrize("params", SAMPLING)
def test_answers_equal_plain_decoding(live: Live, reference: Reference, params: dict[str, Any]) -> None:
    live.wait_for_draft()
    body = {"messages": HELLO, "max_tokens": 60, "ignore_eos": True, "n": 2, **params}
    texts = expected(reference, 60, n=2, ignore_eos=True, **params)
    answer = live.http.post("/v1/chat/completions", json=body).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == texts
    assert answer["usage"]["completion_tokens"] == 120
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    streamed = ["", ""]
    with live.stream(body | {"stream_options": {"include_usage": True}}) as chunks:
        for chunk in chunks:
            add_text(streamed, chunk)
            last = chunk
    assert streamed == texts
    assert last["usage"]["completion_tokens"] == 120
    assert last["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_plain_completion_and_a_request_without_speculation(live: Live, reference: Reference) -> None:
    prompt = reference.tokenizer.encode_prompt("the river")
    (text,) = reference.texts(prompt, max_tokens=20, temperature=0.0)
    body = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "speculative": {"enabled": False}}
    answer = live.http.post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == text
    assert answer["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0


def test_a_killed_draft_is_not_noticed_and_used_again(live: Live, reference: Reference) -> None:
    live.wait_for_draft()
    n, n_tokens = 4, 900
    before = live.endpoint()
    failures = live.metric("ssd:draft_failures_total", reason="stream")
    texts = [""] * n
    params = {"temperature": 0.8, "seed": 3, "ignore_eos": True, "n": n}
    with live.stream({"messages": HELLO, "max_tokens": n_tokens, **params}) as chunks:
        add_text(texts, next(chunks))
        until(lambda: live.status("drafts")["sessions"] == n, "the draft has the sessions")
        os.kill(before["pid"], signal.SIGKILL)
        lost = until(lambda: live.metric("ssd:draft_failures_total", reason="stream") - failures, "the loss is counted")
        assert live.status("target")["requests"] == 1, "the stream had ended before the draft was killed"
        for chunk in chunks:
            add_text(texts, chunk)
    assert lost == 1
    assert texts == expected(reference, n_tokens, **params)
    live.wait_for_draft()
    after = live.endpoint()
    assert after["pid"] != before["pid"]
    assert after["incarnation"] != before["incarnation"]
    assert (after["model_hash"], after["tokenizer_hash"]) == (before["model_hash"], before["tokenizer_hash"])
    body = {"messages": HELLO, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    again = live.http.post("/v1/chat/completions", json=body).json()
    assert [again["choices"][0]["message"]["content"]] == expected(reference, 60, temperature=0.0, ignore_eos=True)
    assert again["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def idle(live: Live) -> bool:
    target, draft = live.status("target"), live.status("drafts")
    return target["requests"] == 0 and not any(target["sessions"].values()) and draft["sessions"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_frees_everything(live: Live, stream: bool) -> None:
    live.wait_for_draft()
    until(lambda: idle(live), "nothing runs")
    target, draft = live.status("target"), live.status("drafts")
    aborted = live.metric("vllm:request_success_total", finished_reason="abort")
    body = {"messages": HELLO, "max_tokens": 3900, "ignore_eos": True, "n": 2, "stream": stream}
    with live.raw_post("/v1/chat/completions", body):
        until(lambda: live.status("drafts")["sessions"] == 2, "the draft has the sessions")
        held = live.status("target")
    assert held["requests"] == 1
    assert held["free_blocks"] < target["free_blocks"]
    until(lambda: idle(live), "the request has been given up on target and draft")
    assert live.metric("vllm:request_success_total", finished_reason="abort") == aborted + 2
    assert live.status("target")["free_blocks"] == target["free_blocks"]
    until(lambda: live.status("drafts")["free_blocks"] == draft["free_blocks"], "the draft's pages are free")


def test_errors_pass_the_proxy(live: Live) -> None:
    refusal = live.http.post("/v1/chat/completions", json={"messages": HELLO, "logprobs": True})
    assert refusal.status_code == 400
    assert refusal.json()["error"]["param"] == "logprobs"
    too_long = live.http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 5000, "stream": True})
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert live.http.get("/health").json() == {"status": "ok"}
    assert [model["id"] for model in live.http.get("/v1/models").json()["data"]] == ["tiny"]


def test_everything_listens_on_loopback_only(live: Live) -> None:
    me = psutil.Process()
    listening = []
    for process in [me, *me.children(recursive=True)]:
        try:
            listening += [c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        except psutil.NoSuchProcess:
            continue
    assert len(listening) > 5
    for address in map(ipaddress.ip_address, listening):
        mapped = getattr(address, "ipv4_mapped", None) or address
        assert mapped.is_loopback, f"something listens on {address}"


def test_the_same_series_reach_rays_metrics(live: Live) -> None:
    import ray

    live.wait_for_draft()
    live.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})
    (node,) = ray.nodes()
    url = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"

    def exported() -> bool:
        text = httpx.get(url, timeout=30).text
        wanted = ("vllm_generation_tokens", "ssd_link_bytes", "ssd_draft_steps", "vllm_kv_cache_usage_perc")
        return all(f"ray_{name}" in text for name in wanted)

    until(exported, "Ray exports the engines' series")
