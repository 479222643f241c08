"""A running Ray cluster over its dashboard's HTTP interface, which `serve deploy` uses too; calls have deadlines."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from ssd_cluster.errors import StartupError
from ssd_cluster.serve.fit import Node

CALL_S = 30.0
APPLICATIONS = "/api/serve/applications/"
NODES = "/api/v0/nodes?limit=10000"
_HINT = "is Ray running there, started with its dashboard? name the dashboard with --address http://HOST:8265"


class RayCluster:
    """One cluster, by the address of its dashboard.

    Args:
        address: http://HOST:PORT.
        headers: sent with each call: Ray's token, where its authentication is on.
    """

    def __init__(self, address: str, headers: Mapping[str, str] | None = None) -> None:
        if not address.startswith(("http://", "https://")):
            raise StartupError(f"{address!r} is not the address of a Ray dashboard: it starts with http:// or https://")
        self.address = address.rstrip("/")
        self._headers = dict(headers or {})

    @classmethod
    def at(cls, address: str) -> RayCluster:
        """With the token that Ray finds for this user (``RAY_AUTH_TOKEN``, ``RAY_AUTH_TOKEN_PATH``, ~/.ray).

        Raises:
            StartupError: authentication is on and there is no token.
        """
        from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled
        from ray.exceptions import AuthenticationError

        try:
            return cls(address, get_auth_headers_if_auth_enabled({}))
        except AuthenticationError as error:
            raise StartupError(f"Ray's authentication is on and no token is there: {_first_line(str(error))}") from None

    def nodes(self) -> list[Node]:
        """The nodes that are alive."""
        answer = self._call("GET", NODES)
        found = answer.get("data", {}).get("result", {}).get("result") or []
        alive = [node for node in found if node.get("state") == "ALIVE"]
        return [Node(node["node_ip"], node.get("resources_total") or {}, node.get("labels") or {}) for node in alive]

    def details(self) -> dict[str, Any]:
        """State of Serve: ``http_options``, and ``applications`` by name; both empty where it does not run."""
        return self._call("GET", APPLICATIONS)

    def deploy(self, content: dict[str, Any]) -> None:
        """Make Serve run exactly the applications of a configuration file; returns before they are ready."""
        self._call("PUT", APPLICATIONS, content)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """
        Raises:
            StartupError: nothing answers, what answers is no Ray, or it refuses.
        """
        headers = self._headers | {"content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise StartupError(f"{self.address}: {_refusal(error)}") from None
        except OSError as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise StartupError(f"{self.address}: {reason}; {_HINT}") from None
        try:
            parsed = json.loads(text) if text else {}
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise StartupError(f"{self.address}: what answers there is no Ray dashboard; {_HINT}")
        return parsed


def _refusal(error: urllib.error.HTTPError) -> str:
    if error.code in (401, 403):
        return (
            f"HTTP {error.code}: it wants Ray's token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH as on its nodes"
        )
    said = error.read(4096).decode(errors="replace")
    return f"HTTP {error.code}: {_first_line(said) or error.reason}"


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
