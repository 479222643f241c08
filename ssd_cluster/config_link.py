"""Configuration of the draft link: deadlines, who may use it, and what one target may ask of a draft."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import Annotated

from pydantic import Field

from ssd_cluster.config_base import SecretFile, Settings


class TlsSettings(Settings):
    """Mutual TLS: both sides show a certificate of one authority. All three are PEM files.

    ``certificate``: of this replica, with intermediate ones behind it; ``key``: its private key, without a passphrase;
    ``authority``: the certificates that sign those of all peers, and nothing else: whatever they sign is let in.
    ``server_name``: for a target, the DNS name that the draft's certificate must carry; None: the host of its endpoint.
    """

    certificate: SecretFile
    key: SecretFile
    authority: SecretFile
    server_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None


class LinkSettings(Settings):
    """Deadlines and limits of the draft link, and how its two ends know each other.

    ``tls`` and ``token_file`` are the same on both sides; beyond this machine at least one of them is needed. A draft
    accepts every token in its file (one per line), a target presents the first one in its own.
    """

    connect_timeout_s: float = Field(default=5.0, gt=0)
    ping_interval_s: float = Field(default=2.0, gt=0)
    session_ttl_s: float = Field(default=10.0, gt=0)
    frame_bytes: int = Field(default=4 * 1024 * 1024, ge=4096)
    send_queue: int = Field(default=1024, ge=1)
    tls: TlsSettings | None = None
    token_file: SecretFile | None = None


class TargetLimits(Settings):
    """What a draft lets one target ask for, below the credits that all targets share.

    ``sessions``, ``rows``: None: no less than its share of ``session_credit`` and ``row_credit``. ``tokens``: most
    committed tokens of its sessions together; None: as many as its sessions' contexts hold. ``opens_per_s``: sessions
    opened, in the long run; ``opens_burst``: at once.
    """

    sessions: int | None = Field(default=None, ge=1)
    rows: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    opens_per_s: float = Field(default=200.0, gt=0)
    opens_burst: int = Field(default=400, ge=1)


def is_loopback(host: str) -> bool:
    """Whether an address, or the name ``localhost``, can only be this machine."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    return False


def exposed(host: str, link: LinkSettings, key: str) -> str | None:
    """Why the draft link may not use this host, or None: beyond this machine it needs TLS or a token."""
    if is_loopback(host) or guarded(link):
        return None
    return (
        f"{key} = {host!r} is not a loopback address, and the draft link has neither TLS nor a token: prompts would "
        "travel in the clear, and anybody could use the draft; set link.tls (certificate, key, authority) or "
        f"link.token_file on targets and drafts, or set {key} to 127.0.0.1"
    )


def unfit_for_draft(host: str, link: LinkSettings) -> str | None:
    """Why a draft cannot be run with these settings, or None."""
    if link.tls is not None and link.tls.server_name is not None:
        return "link.tls.server_name is for targets: it names the certificate that they expect of a draft"
    return exposed(host, link, "host")


def guarded(link: LinkSettings) -> bool:
    """Whether anything is set that only matters between processes."""
    return link.tls is not None or link.token_file is not None
