"""Requests to a served target over HTTP, wherever it is, and what plain decoding answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx

from support.faults.trial import DEADLINE_S, PROMPT
from support.live_cluster import Reference

IMPORT_PATH = "ssd_cluster.serve.app:build"


class StreamError(Exception):
    """What a client is told instead of an answer."""


class HttpScene:
    """See ``trial.Scene``.

    Args:
        target: checkpoint.
        url: where it is served.
        max_tokens: length of every answer.
        key: API key, where one is asked for.
    """

    def __init__(self, target: Path, url: str, max_tokens: int, key: str | None = None) -> None:
        self.max_tokens = max_tokens
        self._reference = Reference(target)
        self._prompt = self._reference.tokenizer.encode_prompt(PROMPT)
        self._plain: dict[str, str] = {}
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._http = httpx.Client(base_url=url, timeout=DEADLINE_S, headers=headers)

    def close(self) -> None:
        self._http.close()
        self._reference.close()

    def network(self) -> AbstractContextManager[None]:
        """The network that clients are in."""
        return nullcontext()

    def listens(self, host: str, port: int) -> bool:
        with suppress(OSError), self.network(), socket.create_connection((host, port), timeout=1.0):
            return True
        return False

    def healthy(self) -> bool:
        with suppress(httpx.HTTPError), self.network():
            return self._http.get("/health", timeout=10.0).status_code == 200
        return False

    def view(self) -> dict[str, Any]:
        """What the target's own /v1/cluster shows."""
        with self.network():
            answer = self._http.get("/v1/cluster")
        assert answer.status_code == 200, answer.text
        whole: dict[str, Any] = answer.json()
        return whole

    def ask(self, params: dict[str, Any]) -> Iterator[str]:
        body = {"prompt": self._prompt, "stream": True, **params}
        with self.network(), self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise StreamError(f"HTTP {response.status_code}: {response.read().decode()[:200]}")
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    return
                if line:
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise StreamError(chunk["error"]["message"])
                    yield from (choice["text"] for choice in chunk["choices"] if choice["text"])
        raise StreamError("the stream ended without [DONE]")

    def plain(self, params: dict[str, Any]) -> str:
        key = repr(params)
        if key not in self._plain:
            (self._plain[key],) = self._reference.texts(self._prompt, **params)
        return self._plain[key]

    def counter(self, name: str, **labels: str) -> float:
        with self.network():
            text = self._http.get("/metrics").text
        total = 0.0
        for line in text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total


def application(name: str, route: str | None, args: dict[str, Any], **options: Any) -> dict[str, Any]:
    """One entry of ``applications``; ``options`` are those of its deployment."""
    deployment = {"name": "draft" if route is None else "target", **options}
    entry = {"name": name, "import_path": IMPORT_PATH, "route_prefix": route, "args": args}
    return entry | {"deployments": [deployment]}
