"""Where a target finds its draft: the draft deployment is asked each time a connection is made.

A draft that was killed and started again has another port; asking anew is how it is found.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from ssd_cluster.errors import LinkError
from ssd_cluster.serve.draft_service import DraftEndpoint


class EndpointFinder:
    """Asks a draft deployment for the endpoint of one of its replicas; blocks at most ``timeout_s``."""

    def __init__(self, application: str, deployment: str, timeout_s: float) -> None:
        self._application = application
        self._deployment = deployment
        self._timeout_s = timeout_s
        self._handle: Any = None

    def __call__(self) -> str:
        """host:port.

        Raises:
            LinkError: no replica answered in time, or there is no such application.
        """
        name = f"{self._application}/{self._deployment}"
        try:
            return self._ask()["endpoint"]
        except TimeoutError:
            raise LinkError(f"no draft replica of {name} answered within {self._timeout_s:g} s") from None
        except (RayError, RayServeException) as error:
            raise LinkError(f"no draft replica of {name} can be asked: {type(error).__name__}: {error}") from error

    def _ask(self) -> DraftEndpoint:
        if self._handle is None:
            self._handle = serve.get_deployment_handle(self._deployment, app_name=self._application)
        response = self._handle.endpoint.remote()
        try:
            found: DraftEndpoint = response.result(timeout_s=self._timeout_s)
        except TimeoutError:
            response.cancel()
            raise
        return found
