"""Chat completions and the view of the cluster, over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from ssd_cluster.errors import StartupError

VIEW_S = 10.0


@dataclass(frozen=True, slots=True)
class Question:
    """One request; equal questions must get equal texts, speculated or not."""

    prompt: str
    seed: int
    max_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class Answer:
    """``tokens`` as the server counts them (usage)."""

    text: str
    tokens: int


class Endpoint:
    """One served target.

    Args:
        url: of the server, without a path of the API.
        key: API key, where it asks for one.
        timeout_s: longest silence within one request.
    """

    def __init__(self, url: str, key: str | None, timeout_s: float) -> None:
        headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.Client(base_url=url.rstrip("/"), headers=headers, timeout=timeout_s, limits=limits)

    def close(self) -> None:
        self._http.close()

    def ask(self, question: Question, *, speculate: bool = True) -> Answer:
        """The whole answer.

        Raises:
            httpx.HTTPError: it did not come.
        """
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": question.prompt}],
            "max_tokens": question.max_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "ignore_eos": True,
        }
        if not speculate:
            body["speculative"] = {"enabled": False}
        response = self._http.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        answer = response.json()
        return Answer(answer["choices"][0]["message"]["content"], int(answer["usage"]["completion_tokens"]))

    def view(self) -> dict[str, Any] | None:
        """``GET /v1/cluster``, or None if it did not come this time."""
        try:
            response = self._http.get("/v1/cluster", timeout=VIEW_S)
            response.raise_for_status()
            view: dict[str, Any] = response.json()
        except (httpx.HTTPError, ValueError):
            return None
        return view

    def require(self) -> dict[str, Any]:
        """The view.

        Raises:
            StartupError: no target of a cluster answers here.
        """
        view = self.view()
        if view is None:
            raise StartupError(f"{self._http.base_url}: no served target answers at /v1/cluster; name one with --url")
        return view
