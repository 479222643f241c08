"""A target over two ranks, a replica and a worker actor: its text, the loss of a rank, and its end."""

from __future__ import annotations

import ipaddress
import os
import signal
from typing import Any

import psutil
import pytest
from support.live_cluster import Live, Reference, model_args, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

APPLICATION = "split"
HELLO = [{"role": "user", "content": "once upon a time"}]
BODY: dict[str, Any] = {"messages": HELLO, "max_tokens": 40, "ignore_eos": True, "temperature": 0.8, "seed": 5}


def deploy(live: Live) -> None:
    """What ``serve deploy`` does with a configuration file."""
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    model = model_args(live.checkpoints.target) | {"tensor_parallel": 2, "rank_timeout_s": 20}
    application = {
        "name": APPLICATION,
        "import_path": "ssd_cluster.serve.app:build",
        "route_prefix": "/split",
        "args": {"target": {"model": model, "served_name": "split", "mode": "ar", "graceful_shutdown_timeout_s": 2}},
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}))


def ranks() -> list[psutil.Process]:
    """Worker actors that run, of all Ray processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "RankActor" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def healthy(live: Live) -> bool:
    return bool(live.http.get("/split/health").status_code == 200)


def answer(live: Live) -> str:
    response = live.http.post("/split/v1/chat/completions", json=BODY)
    response.raise_for_status()
    return str(response.json()["choices"][0]["message"]["content"])


def test_two_ranks_answer_as_one_and_a_lost_rank_is_replaced(live: Live, reference: Reference) -> None:
    from ray import serve

    prompt = reference.tokenizer.apply_chat_template(HELLO)
    (expected,) = reference.texts(prompt, max_tokens=40, ignore_eos=True, temperature=0.8, seed=5)
    deploy(live)
    try:
        until(lambda: healthy(live), "the target over two ranks serves")
        assert answer(live) == expected
        (rank,) = ranks()
        for connection in rank.net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                address = ipaddress.ip_address(connection.laddr.ip)
                assert (getattr(address, "ipv4_mapped", None) or address).is_loopback, connection
        os.kill(rank.pid, signal.SIGKILL)
        until(lambda: [one.pid for one in ranks()] not in ([], [rank.pid]), "another rank has been started")
        until(lambda: healthy(live), "the replacement serves")
        assert answer(live) == expected
    finally:
        serve.delete(APPLICATION)
    until(lambda: not ranks(), "no rank is left")
