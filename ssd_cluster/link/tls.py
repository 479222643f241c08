"""Certificates of the draft link: read and tried out before use, and a second look when a handshake has failed.

gRPC says little about a failed handshake ("Socket closed" where a draft refuses a target's certificate), so the reason
is found with the standard library's TLS: one more handshake, by hand.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ssd_cluster.config_link import TlsSettings
from ssd_cluster.credentials import read_secret
from ssd_cluster.errors import ConfigError
from ssd_cluster.link.codec import Side

_MAX_STEPS = 16  # of a handshake in memory


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What the settings' files hold."""

    certificate: bytes = field(repr=False)
    key: bytes = field(repr=False)
    authority: bytes = field(repr=False)


def load_tls(settings: TlsSettings, side: Side) -> TlsFiles:
    """Read the files and try them: a certificate that every peer would refuse is found here, not by them.

    Raises:
        ConfigError: one cannot be read or parsed, certificate and key do not belong together, or the certificate has
            expired, is not of this authority or not made for this side; the message names the setting and the file.
    """
    files = TlsFiles(
        _read(settings.certificate, "link.tls.certificate"),
        read_secret(settings.key, "link.tls.key"),
        _read(settings.authority, "link.tls.authority"),
    )
    _try_own(settings, side)
    return files


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror or type(error).__name__}", param=key) from None


def _try_own(settings: TlsSettings, side: Side) -> None:
    """A handshake with ourselves, in memory, in which the side that we are not looks at our certificate."""
    server, client = _contexts(settings)
    looking = client if side is Side.DRAFT else server
    looking.verify_mode = ssl.CERT_REQUIRED
    try:
        _handshake(server, client)
    except ssl.SSLError as error:
        raise ConfigError(
            f"link.tls.certificate: {settings.certificate} would be refused by every peer: {_verdict(error)}",
            param="link.tls.certificate",
        ) from None


def _contexts(settings: TlsSettings) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server, client), both with our certificate and authority; neither looks at the other yet."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        _load(context, settings)
    return server, client


def _load(context: ssl.SSLContext, settings: TlsSettings) -> None:
    def no_passphrase() -> str:
        raise ConfigError(f"link.tls.key: {settings.key} has a passphrase; remove it", param="link.tls.key")

    try:
        context.load_cert_chain(settings.certificate, settings.key, password=no_passphrase)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"link.tls: {settings.certificate} and {settings.key} are no PEM certificate and its key: "
            f"{_verdict(error)}",
            param="link.tls.certificate",
        ) from None
    try:
        context.load_verify_locations(settings.authority)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(
            f"link.tls.authority: {settings.authority} holds no PEM certificate: {_verdict(error)}",
            param="link.tls.authority",
        ) from None


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_MAX_STEPS):
        waiting = []
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                waiting.append(end)
        ends = waiting
        if not ends:
            return


def _verdict(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return (error.reason or "unknown reason").lower().replace("_", " ")
    return getattr(error, "strerror", None) or type(error).__name__


def why_refused(host: str, port: int, settings: TlsSettings | None, timeout_s: float) -> str | None:
    """Why no stream came about, as far as TLS has to do with it, or None. Blocks at most ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    try:
        return _why_plain(host, port, deadline) if settings is None else _why_tls(host, port, settings, deadline)
    except (OSError, ConfigError):
        return None  # not about certificates


def _why_plain(host: str, port: int, deadline: float) -> str | None:
    """Whether the draft speaks TLS to a target without it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    speaks = "it wants TLS; set link.tls (certificate, key, authority) on this target too"
    try:
        _probe(host, port, context, None, deadline, lambda _: None)
    except ssl.SSLError as error:
        return speaks if "ALERT" in (error.reason or "") else None
    return speaks


def _why_tls(host: str, port: int, settings: TlsSettings, deadline: float) -> str | None:
    _, context = _contexts(settings)
    context.check_hostname, context.verify_mode = True, ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    refuses = f"the draft refuses this target's certificate {settings.certificate}"
    answered = False

    def listen(connection: ssl.SSLSocket) -> None:
        nonlocal answered
        answered = True
        if not connection.recv(1):  # a server's first word of HTTP/2 follows the handshake at once
            raise ConnectionResetError

    try:
        _probe(host, port, context, settings.server_name or host, deadline, listen)
    except ssl.SSLCertVerificationError as error:
        return f"the draft's certificate is refused here: {error.verify_message}"
    except ssl.SSLError as error:
        if answered or "ALERT" in (error.reason or ""):
            return f"{refuses}: {_verdict(error)}"
        return f"it does not speak TLS ({_verdict(error)}); set link.tls on the draft too"
    except ConnectionError:
        # With TLS 1.3 a refusal comes after the handshake; gRPC hangs up without an alert.
        advice = "has its link.tls.authority signed it, and do both clocks agree?"
        return f"{refuses}: it hung up when it saw it; {advice}" if answered else None
    return None


def _probe(
    host: str,
    port: int,
    context: ssl.SSLContext,
    name: str | None,
    deadline: float,
    then: Callable[[ssl.SSLSocket], None],
) -> None:
    def left() -> float:
        return max(0.01, deadline - time.monotonic())

    with contextlib.closing(socket.create_connection((host, port), timeout=left())) as plain:
        plain.settimeout(left())
        with context.wrap_socket(plain, server_hostname=name) as connection:
            connection.settimeout(left())
            then(connection)
