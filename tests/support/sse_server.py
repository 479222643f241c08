"""A small HTTP server that answers as OpenAI-compatible servers do, or fails in the ways that they do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKENS_PER_PART = 3


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, key: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.key = key
        self.bodies: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    """The prompt says what happens: ``busy``, ``cut``, ``uncounted``, ``broken``, or an answer in two parts."""

    server: _Server

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        if self._allowed():
            self._whole(200, {"data": [{"id": "scripted"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self._allowed():
            return
        self.server.bodies.append({"path": self.path} | body)
        prompt = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        if prompt == "busy":
            self._whole(429, {"error": {"message": "try later"}})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in self._events(prompt, "prompt" in body):
            self.wfile.write(f"data: {event}\n\n".encode())
            self.wfile.flush()

    def _events(self, prompt: str, plain: bool) -> Iterator[str]:
        if not plain:
            yield json.dumps({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for text in ("one", "two"):
            choice = {"text": text} if plain else {"delta": {"content": text}}
            yield json.dumps({"choices": [choice], "usage": None})
        if prompt == "broken":
            yield json.dumps({"error": {"message": "device lost"}})
            return
        if prompt == "cut":
            return
        if prompt != "uncounted":
            usage = {"prompt_tokens": 5, "completion_tokens": 2 * TOKENS_PER_PART}
            yield json.dumps({"choices": [], "usage": usage})
        yield "[DONE]"

    def _allowed(self) -> bool:
        if self.server.key is None or self.headers["authorization"] == f"Bearer {self.server.key}":
            return True
        self._whole(401, {"error": {"message": "no key"}})
        return False

    def _whole(self, status: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def sse_server(key: str | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(base URL, bodies of the requests so far)."""
    server = _Server(key)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.bodies
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
