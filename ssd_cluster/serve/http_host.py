"""Where Serve listens for HTTP is settled by whoever starts it; a target looks before it opens itself to a network."""

from __future__ import annotations

import logging

from ray.serve.context import _get_global_client

from ssd_cluster.config import HttpAccess
from ssd_cluster.config_link import is_loopback
from ssd_cluster.errors import ConfigError
from ssd_cluster.serve.args import unprotected

log = logging.getLogger(__name__)


def require_protected_http(http: HttpAccess) -> None:
    """Refuse to serve beyond this machine without API keys, unless that is asked for; that is then logged.

    Raises:
        ConfigError: says what to set.
    """
    client = _get_global_client(raise_if_no_controller_running=False)
    host = client.http_config.host if client is not None else None
    if host is None:
        return  # no proxy, no HTTP
    reason = unprotected(http, host)
    if reason is not None:
        raise ConfigError(reason, param="target.http")
    if http.allow_open and not is_loopback(host):
        log.warning("HTTP endpoint without API keys host=%s because=target.http.allow_open", host)
