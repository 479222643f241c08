"""Streams one answer and notes when its parts came; what was generated is counted by the server's usage alone."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from ssd_cluster.bench.handle import Workload
from ssd_cluster.credentials import read_secret
from ssd_cluster.errors import ConfigError, EngineStopped

CONNECT_S = 10.0
_DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how it is asked.

    Attributes:
        url: base, with or without ``/v1``.
        model: name to ask for; None: the first that /v1/models lists.
        api_key: bearer key; never shown.
        timeout_s: longest silence within an answer.
    """

    url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0

    @property
    def base(self) -> str:
        """Ends with ``/v1``."""
        trimmed = self.url.rstrip("/")
        return trimmed if trimmed.endswith("/v1") else f"{trimmed}/v1"


@dataclass(slots=True)
class Answer:
    """One request. Times are seconds of ``time.perf_counter``.

    Attributes:
        asked_s: when it was sent.
        parts_s: when text came; servers put several tokens into one part.
        prompt_tokens, completion_tokens: usage; 0 where there is none.
        error: kind of failure; None: complete, with usage.
        detail: what the failure said.
    """

    asked_s: float
    parts_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None
    detail: str = ""


class _Failed(Exception):
    """An answer that is not complete; ``kind`` is what is counted."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(detail or kind)
        self.kind = kind


class Client:
    """Asks one endpoint; use it in ``async with``.

    Args:
        endpoint: where.
        transport: for tests.
        clock: stamps what comes.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        headers = {"authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        self._endpoint = endpoint
        self._clock = clock
        self._http = httpx.AsyncClient(
            headers=headers,
            transport=transport,
            timeout=httpx.Timeout(endpoint.timeout_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def model(self) -> str:
        """The model to ask for.

        Raises:
            ConfigError: the endpoint does not answer, or lists none.
        """
        if self._endpoint.model is not None:
            return self._endpoint.model
        try:
            response = await self._http.get(f"{self._endpoint.base}/models")
            response.raise_for_status()
            return str(response.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            said = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self._endpoint.base}/models names no model ({said})", param="url") from None

    async def ask(self, model: str, workload: Workload, index: int) -> Answer:
        """Stream the answer to a prompt of a workload; failures are noted in it, never raised."""
        answer = Answer(self._clock())
        try:
            await self._stream(answer, *request_of(model, workload, index))
        except _Failed as failure:
            answer.error, answer.detail = failure.kind, str(failure)
        except httpx.TimeoutException as error:
            answer.error, answer.detail = "timeout", type(error).__name__
        except (httpx.HTTPError, OSError) as error:
            answer.error, answer.detail = "connection", f"{type(error).__name__}: {error}"
        return answer

    async def _stream(self, answer: Answer, path: str, body: dict[str, Any]) -> None:
        usage: dict[str, Any] | None = None
        done = False
        async with self._http.stream("POST", f"{self._endpoint.base}/{path}", json=body) as response:
            if response.status_code != httpx.codes.OK:
                text = (await response.aread()).decode(errors="replace")
                raise _Failed(f"status {response.status_code}", text[:200])
            async for data in _events(response):
                if data == _DONE:
                    done = True
                    break
                chunk = _parsed(data)
                if _has_text(chunk):
                    answer.parts_s.append(self._clock())
                usage = chunk.get("usage") or usage
        if not done:
            raise _Failed("cut off", "the stream ended without [DONE]")
        _take_usage(answer, usage)


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            yield line.removeprefix("data:").strip()


def _parsed(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError:
        raise _Failed("no JSON", data[:200]) from None
    if not isinstance(chunk, dict):
        raise _Failed("no JSON", data[:200])
    if chunk.get("error"):
        raise _Failed("error event", str(chunk["error"])[:200])
    return chunk


def _has_text(chunk: dict[str, Any]) -> bool:
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
            return True
    return False


def _take_usage(answer: Answer, usage: dict[str, Any] | None) -> None:
    try:
        counts = usage or {}
        answer.prompt_tokens = int(counts["prompt_tokens"])
        answer.completion_tokens = int(counts["completion_tokens"])
    except (KeyError, TypeError, ValueError):
        raise _Failed("no usage", "the server does not honour stream_options.include_usage") from None


def request_of(model: str, workload: Workload, index: int) -> tuple[str, dict[str, Any]]:
    """Path and body of one prompt's request; fields that OpenAI's API lacks are sent only where they are asked for."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": workload.max_tokens,
        "temperature": workload.temperature,
        "top_p": workload.top_p,
        "seed": workload.seed + index,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if workload.top_k:
        body["top_k"] = workload.top_k
    if workload.ignore_eos:
        body["ignore_eos"] = True
    prompt = workload.prompts[index]
    if workload.raw:
        return "completions", body | {"prompt": prompt}
    return "chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}


def read_api_key(path: Path | None) -> str | None:
    """The first line of a key file that is neither blank nor a comment.

    Raises:
        ConfigError: it cannot be read or has no such line.
    """
    if path is None:
        return None
    lines = read_secret(path, "--api-key-file").decode(errors="replace").splitlines()
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys or not keys[0].isascii():
        raise ConfigError(f"--api-key-file: {path} holds no key; write it on a line of its own", param="api_key_file")
    return keys[0]


def checked_url(text: str) -> str:
    """The same, if it is an http(s) URL.

    Raises:
        ConfigError: it is none.
    """
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(f"{text!r} is no URL of an endpoint, such as http://127.0.0.1:8000/v1", param="url")
    return text


async def ask_all(client: Client, model: str, workload: Workload) -> list[Answer]:
    """Answer every prompt, at most ``batch`` at a time, in order.

    Raises:
        EngineStopped: an answer is not complete.
    """
    gate = asyncio.Semaphore(workload.batch)

    async def one(index: int) -> Answer:
        async with gate:
            answer = await client.ask(model, workload, index)
        if answer.error is not None:
            raise EngineStopped(f"prompt {index} failed: {answer.error}: {answer.detail}")
        return answer

    return list(await asyncio.gather(*(one(index) for index in range(len(workload.prompts)))))
