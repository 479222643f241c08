"""A local Ray that serves tiny checkpoints, and an engine in this process that says what the answers must be."""

from __future__ import annotations

import json
import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from ssd_cluster.config import DType, ModelSettings, TargetSettings
from ssd_cluster.model.runner import load_runner
from ssd_cluster.sampling.params import SamplingParams
from ssd_cluster.target.engine import TargetEngine
from ssd_cluster.target.request import Delta, Finished, GenerationRequest
from ssd_cluster.text.tokenizer import Tokenizer
from ssd_cluster.types import Mode
from support.tiny import make_checkpoint, perturb

DEADLINE_S = 120.0
CONTEXT = 4096


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Ask until the answer is truthy; fail with ``what`` at the deadline."""
    deadline = time.monotonic() + deadline_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Checkpoints:
    """A tiny target, a draft that resembles it, and the file that serves them on ``port``."""

    target: Path
    draft: Path
    file: Path
    port: int


def write_checkpoints(folder: Path) -> Checkpoints:
    target = make_checkpoint(folder / "target", max_context=CONTEXT)
    draft = perturb(target, folder / "draft")
    port = free_port()
    content = {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "drafts",
                "import_path": "ssd_cluster.serve.app:build",
                "route_prefix": None,
                "args": {"draft": {"model": model_args(draft), "k_max": 4, "row_credit": 32}},
            },
            {
                "name": "target",
                "import_path": "ssd_cluster.serve.app:build",
                "route_prefix": "/",
                "args": {
                    "target": {
                        "model": model_args(target),
                        "served_name": "tiny",
                        "draft_application": "drafts",
                        "self_test": False,
                        "speculation": {"k": 3, "rows": 4, "miss_policy": "always_wait"},
                        "breaker": {"late_share": 1.0},
                    }
                },
            },
        ],
    }
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump(content))
    return Checkpoints(target, draft, file, port)


def model_args(path: Path) -> dict[str, Any]:
    return {"path": str(path), "dtype": "float32", "kv_tokens": 2 * CONTEXT}


class Reference:
    """Plain decoding in this process: the text that every mode must write."""

    def __init__(self, checkpoint: Path) -> None:
        model = ModelSettings(path=str(checkpoint), dtype=DType.FLOAT32, kv_tokens=2 * CONTEXT)
        self.tokenizer = Tokenizer.load(checkpoint)
        settings = TargetSettings(model=model, mode=Mode.AR)
        self._engine = TargetEngine(load_runner(model), self.tokenizer, settings)
        self._engine.start()

    def close(self) -> None:
        self._engine.stop()

    def texts(self, prompt: list[int], **params: Any) -> list[str]:
        events: queue.Queue[Delta | Finished] = queue.Queue()
        sampling = SamplingParams(**params)
        self._engine.submit(GenerationRequest("reference", tuple(prompt), sampling), events.put)
        texts = [""] * sampling.n
        while True:
            event = events.get(timeout=DEADLINE_S)
            if isinstance(event, Finished):
                assert event.error is None
                return texts
            texts[event.choice] += event.text


class Live:
    """The served applications over HTTP, and the state of their replicas through handles."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self.checkpoints = checkpoints
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{checkpoints.port}", timeout=DEADLINE_S)

    def status(self, application: str) -> dict[str, Any]:
        return self._call(application, "status")

    def endpoint(self) -> dict[str, Any]:
        return self._call("drafts", "endpoint")

    def _call(self, application: str, method: str) -> dict[str, Any]:
        from ray import serve

        deployment = "draft" if application == "drafts" else "target"
        handle = serve.get_deployment_handle(deployment, app_name=application)
        answer: dict[str, Any] = getattr(handle, method).remote().result(timeout_s=DEADLINE_S)
        return answer

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a series that carry these labels."""
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
                total += float(value)
        return total

    def wait_for_draft(self) -> None:
        """Until the target has a link to a draft; sessions bring it up, so there have to be some."""

        def drafted() -> bool:
            self.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 8, "ignore_eos": True})
            return "ready" in self.status("target")["drafts"]

        until(drafted, "the target has found its draft")

    @contextmanager
    def raw_post(self, path: str, body: dict[str, Any]) -> Iterator[None]:
        """A request over a bare connection that is closed at the end, whatever has been answered by then."""
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(data)}"]
        with socket.create_connection(("127.0.0.1", self.checkpoints.port), timeout=DEADLINE_S) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
            yield

    @contextmanager
    def stream(self, body: dict[str, Any], path: str = "/v1/chat/completions") -> Iterator[Iterator[dict[str, Any]]]:
        """Chunks of a streamed chat; leaving early disconnects."""
        with self.http.stream("POST", path, json=body | {"stream": True}) as response:
            assert response.status_code == 200
            yield _chunks(response)


def _chunks(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line == "data: [DONE]":
            return
        if line:
            chunk = json.loads(line.removeprefix("data: "))
            assert "error" not in chunk, chunk
            yield chunk
    raise AssertionError("the stream ended without [DONE]")


def add_text(texts: list[str], chunk: dict[str, Any]) -> None:
    for choice in chunk["choices"]:
        texts[choice["index"]] += choice["delta"].get("content") or ""
