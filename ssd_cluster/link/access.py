"""Who may use a listener: bearer tokens in the call's metadata, and a cap on streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from enum import StrEnum

from ssd_cluster.config import LinkSettings
from ssd_cluster.config_link import exposed, is_loopback
from ssd_cluster.credentials import Complaints, KeyRing, bearer, read_keys
from ssd_cluster.errors import ConfigError

log = logging.getLogger(__name__)

AUTHORIZATION = "authorization"
TOKEN_KEY = "link.token_file"

Metadata = tuple[tuple[str, str], ...]


class Refusal(StrEnum):
    """Why a listener does not take a stream."""

    NO_TOKEN = "no_token"
    WRONG_TOKEN = "wrong_token"
    FULL = "full"


SAID = {
    Refusal.NO_TOKEN: "the draft wants a token: set link.token_file on this target",
    Refusal.WRONG_TOKEN: "the draft does not know this token: put the same one into link.token_file on both sides",
    Refusal.FULL: "the draft has as many streams as max_streams allows",
}


def require_protection(host: str, key: str, settings: LinkSettings) -> None:
    """Refuse to talk beyond this machine without TLS or a token.

    Raises:
        ConfigError: the message says what to set.
    """
    reason = exposed(host, settings, key)
    if reason is not None:
        raise ConfigError(reason, param=key)


def warn_of_clear_text(host: str, settings: LinkSettings) -> None:
    """Say that a token alone keeps strangers out, but hides nothing from who can listen in."""
    if settings.tls is None and not is_loopback(host):
        log.warning(
            "draft link without TLS host=%s risk=%r do=set_link.tls",
            host,
            "prompts, outputs and the token can be read on the network",
        )


def credentials_of(settings: LinkSettings) -> Metadata:
    """Metadata of a target's call; its token file is read for each, so that tokens can be exchanged.

    Raises:
        ConfigError: the token file cannot be used.
    """
    if settings.token_file is None:
        return ()
    return ((AUTHORIZATION, f"Bearer {read_keys(settings.token_file, TOKEN_KEY)[0]}"),)


class Doorman:
    """Decides on each stream of a listener; logs refusals, but not more often than the log can bear.

    Args:
        settings: names the token file, if there is one.
        max_streams: most streams at once; None: any number.
        refused: called with the reason of each refusal.
        clock: seconds, monotonic.

    Raises:
        ConfigError: the token file cannot be used.
    """

    def __init__(
        self,
        settings: LinkSettings,
        max_streams: int | None,
        refused: Callable[[str], None] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = KeyRing(settings.token_file, TOKEN_KEY) if settings.token_file is not None else None
        self._max_streams = max_streams
        self._refused = refused
        self._complaints = Complaints(log, clock)

    def refusal(self, metadata: Iterable[tuple[str, str | bytes]], peer: str, streams: int) -> Refusal | None:
        """Why this call is not taken, or None.

        Args:
            metadata: of the call.
            peer: its address.
            streams: that are open already.
        """
        reason = self._decide(metadata, streams)
        if reason is not None:
            self._complaints.say("stream refused", peer, reason)
            if self._refused is not None:
                self._refused(reason.value)
        return reason

    def _decide(self, metadata: Iterable[tuple[str, str | bytes]], streams: int) -> Refusal | None:
        if self._tokens is not None:
            header = next((value for name, value in metadata if name == AUTHORIZATION), None)
            token = bearer(header if isinstance(header, str) else None)
            if not self._tokens.accepts(token):
                return Refusal.NO_TOKEN if token is None else Refusal.WRONG_TOKEN
        if self._max_streams is not None and streams >= self._max_streams:
            return Refusal.FULL
        return None
