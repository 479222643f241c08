"""API keys: requests without one are answered with OpenAI's 401 before anything of them is read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ssd_cluster.api.errors import error_of
from ssd_cluster.credentials import Complaints, KeyRing, bearer
from ssd_cluster.errors import Unauthorized

log = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health"})  # load balancers have no key, and it says nothing but whether we are alive


class ApiKeys:
    """The keys of one endpoint.

    Args:
        path: file of keys, one per line; read again when it changes.
        refused: called for each request that is turned away.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, path: Path, refused: Callable[[], None]) -> None:
        self._keys = KeyRing(path, "http.api_keys_file")
        self._refused = refused
        self._complaints = Complaints(log)

    def check(self, scope: Scope) -> None:
        """Let a request through or not.

        Raises:
            Unauthorized: it carries no valid key.
        """
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        key = bearer(header.decode("latin-1"))
        if self._keys.accepts(key):
            return
        self._refused()
        client = scope.get("client") or ("unknown",)
        self._complaints.say("request refused", str(client[0]), "no_key" if key is None else "wrong_key")
        if key is None:
            raise Unauthorized("no API key: send one as 'Authorization: Bearer KEY'")
        raise Unauthorized("incorrect API key")


class KeyGate:
    """ASGI middleware: every path but ``OPEN_PATHS`` needs a key."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _path(scope) not in OPEN_PATHS:
            try:
                self._keys.check(scope)
            except Unauthorized as error:
                status, body = error_of(error)
                answer = JSONResponse(body, status_code=status, headers={"www-authenticate": "Bearer"})
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _path(scope: Scope) -> str:
    """The path below the application's route prefix."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(prefix) :] if prefix and path.startswith(f"{prefix}/") else path
