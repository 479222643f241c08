"""A target goes from two replicas to one while both answer: no stream is cut off, and no text changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.live_cluster import DEADLINE_S, Live, Reference, add_text, model_args, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

APPLICATION = "scaled"
HELLO = [{"role": "user", "content": "once upon a time"}]


def deploy(live: Live, num_replicas: int) -> None:
    """What ``serve deploy`` does with a configuration file."""
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    args = {"model": model_args(live.checkpoints.target), "served_name": "scaled", "mode": "ar"}
    application = {
        "name": APPLICATION,
        "import_path": "ssd_cluster.serve.app:build",
        "route_prefix": "/scaled",
        "args": {"target": args},
        "deployments": [{"name": "target", "num_replicas": num_replicas}],
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}))


def replicas() -> list[str]:
    """States of the deployment's replicas."""
    from ray import serve

    application = serve.status().applications.get(APPLICATION)
    if application is None or "target" not in application.deployments:
        return []
    states = application.deployments["target"].replica_states
    return sorted(state for state, count in states.items() for _ in range(count))


def busy(live: Live) -> set[str]:
    """Replicas that have a request running, of a few that answered."""
    found = set()
    for _ in range(6):
        for line in live.http.get("/scaled/metrics").text.splitlines():
            if line.startswith("vllm:num_requests_running{") and float(line.rpartition(" ")[2]) > 0:
                found.add(line)
    return {line.partition('replica="')[2].partition('"')[0] for line in found}


class Reader(threading.Thread):
    """Reads one stream to its end; ``begun`` once the first text has come."""

    def __init__(self, live: Live, body: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self.begun, self.text, self.failure = threading.Event(), [""], None
        self._live, self._body = live, body
        self.start()

    def run(self) -> None:
        try:
            with self._live.stream(self._body, "/scaled/v1/chat/completions") as chunks:
                for chunk in chunks:
                    add_text(self.text, chunk)
                    self.begun.set()
        except BaseException as error:
            self.failure = error


def test_two_targets_become_one_with_streams_open(live: Live, reference: Reference) -> None:
    deploy(live, 2)
    until(lambda: replicas() == ["RUNNING", "RUNNING"], "two replicas run")
    params = {"max_tokens": 2500, "ignore_eos": True, "temperature": 0.8}
    readers: list[Reader] = []

    def both_are_busy() -> bool:  # the proxy spreads streams by chance: open more until each replica has one
        readers.append(Reader(live, {"messages": HELLO, "seed": len(readers), **params}))
        assert readers[-1].begun.wait(DEADLINE_S)
        return len(readers) >= 2 and len(busy(live)) == 2

    until(both_are_busy, "both replicas have streams")
    deploy(live, 1)
    until(lambda: "STOPPING" in replicas(), "one replica is asked to stop")
    assert any(reader.is_alive() for reader in readers), "the streams had ended before"
    for reader in readers:
        reader.join(DEADLINE_S)
    assert [reader.failure for reader in readers] == [None] * len(readers)
    prompt = reference.tokenizer.apply_chat_template(HELLO)
    assert [reader.text for reader in readers] == [
        reference.texts(prompt, seed=seed, **params) for seed in range(len(readers))
    ]
    until(lambda: replicas() == ["RUNNING"], "one replica is left")
    answer = live.http.post("/scaled/v1/completions", json={"prompt": "x", "max_tokens": 4})
    assert answer.status_code == 200
