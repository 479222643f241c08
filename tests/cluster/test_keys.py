"""API keys under Serve: a second application whose replicas ask for them, deployed as ``serve deploy`` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.certificates import write_secrets
from support.live_cluster import Live, model_args, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

APPLICATION, KEY = "keyed", "key-of-the-cluster-test"
BODY = {"messages": [{"role": "user", "content": "once upon a time"}], "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def keyed(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client without a key."""
    from ray import serve
    from ray.serve._private.api import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    keys: Path = write_secrets(tmp_path_factory.mktemp("keys") / "api-keys", KEY)
    args = {
        "model": model_args(live.checkpoints.target),
        "served_name": APPLICATION,
        "mode": "ar",
        "http": {"api_keys_file": str(keys)},
    }
    application = {
        "name": APPLICATION,
        "import_path": "ssd_cluster.serve.app:build",
        "route_prefix": f"/{APPLICATION}",
        "args": {"target": args},
    }
    _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": [application]}))
    until(lambda: live.http.get(f"/{APPLICATION}/health").status_code == 200, "it answers /health without a key")
    with httpx.Client(base_url=f"{live.http.base_url}/{APPLICATION}", timeout=60) as client:
        yield client
    serve.delete(APPLICATION)


def test_only_the_key_opens(live: Live, keyed: httpx.Client) -> None:
    for path in ("/v1/models", "/metrics", "/openapi.json"):
        answer = keyed.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    refused = keyed.post("/v1/chat/completions", json=BODY, headers={"authorization": "Bearer wrong"})
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    authorization = {"authorization": f"Bearer {KEY}"}
    assert keyed.post("/v1/chat/completions", json=BODY, headers=authorization).status_code == 200
    assert "ssd:unauthorized_requests_total" in keyed.get("/metrics", headers=authorization).text
    assert live.http.get("/v1/models").status_code == 200  # the other application asks for none


def test_a_replica_sees_where_serve_listens(live: Live) -> None:
    from ray.serve.context import _get_global_client

    from ssd_cluster.config import HttpAccess
    from ssd_cluster.serve.http_host import require_protected_http

    client = _get_global_client()
    assert client is not None
    assert client.http_config.host == "127.0.0.1"
    require_protected_http(HttpAccess())
