"""The draft link over gRPC: ``connect`` for targets, ``Listener`` for drafts.

Frames cross gRPC as opaque bytes; the codec of the stream turns them into messages, so that garbage from a peer is ours
to count and not gRPC's to raise.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import ConfigError, LinkError
from ssd_cluster.link.access import (
    SAID,
    Doorman,
    Metadata,
    Refusal,
    credentials_of,
    require_protection,
    warn_of_clear_text,
)
from ssd_cluster.link.codec import Side
from ssd_cluster.link.grpc_transport import (
    METHOD,
    PATH,
    SERVICE,
    ClientTransport,
    ServerTransport,
    accept,
    accepted,
    bind,
    channel_options,
    in_words,
    name_of,
    open_channel,
)
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.remote import LINGER_S, RemoteStream
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.link.tls import TlsFiles, load_tls, why_refused

log = logging.getLogger(__name__)

_ALL = ("0.0.0.0", "::")
_MIN_LOOK_S = 0.5  # for a second look at a failed handshake, though the deadline be near
_ANSWER_S = 1.0  # how much longer than its own deadline a blocking call waits for the loop


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``.

    Raises:
        ConfigError: it is neither.
    """
    host, colon, port = endpoint.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"endpoint {endpoint!r} is not host:port", param="endpoint")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _require_free(host: str, port: int) -> None:
    """Say that a port is taken before gRPC finds out: it would also write to stderr."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise LinkError(f"cannot listen on {_join_endpoint(host, port)}: {error.strerror or error}") from None


def _join_endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _limits(settings: LinkSettings) -> Limits:
    return Limits(frame_bytes=settings.frame_bytes)


def connect(
    endpoint: str, inbox: Inbox, settings: LinkSettings, loop: LinkLoop, limits: Limits | None = None
) -> Stream:
    """Open a stream to the draft at ``endpoint`` (``host:port``); blocks at most ``settings.connect_timeout_s``.

    Whatever the draft sends goes into ``inbox``. Not to be called on the loop's thread.

    Raises:
        ConfigError: the endpoint is malformed, or beyond this machine without TLS or a token; a certificate or token
            file cannot be used.
        LinkError: nothing answers there, it is no draft, one side refuses the other, or the deadline passed.
    """
    host, port = split_endpoint(endpoint)
    require_protection(host, "endpoint", settings)
    metadata = credentials_of(settings)
    tls = load_tls(settings.tls, Side.TARGET) if settings.tls is not None else None
    deadline = time.monotonic() + settings.connect_timeout_s
    opening = _open(_join_endpoint(host, port), inbox, settings, loop, limits or _limits(settings), tls, metadata)
    try:
        stream = loop.call(opening, settings.connect_timeout_s + _ANSWER_S)
    except _Unreachable as error:
        left_s = max(_MIN_LOOK_S, deadline - time.monotonic())
        reason = why_refused(host, port, settings.tls, left_s)
        raise LinkError(f"no draft answers at {endpoint}: {reason or error.message}") from None
    warn_of_clear_text(host, settings)
    return stream


class _Unreachable(LinkError):
    """No call came about; TLS may be the reason."""


def _not_accepted(endpoint: str, code: grpc.StatusCode, details: str) -> LinkError:
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return LinkError(f"what listens at {endpoint} is no draft of this project")
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return LinkError(f"refused at {endpoint}: {details}")
    return _Unreachable(in_words(code, details))


async def _open(
    endpoint: str,
    inbox: Inbox,
    settings: LinkSettings,
    loop: LinkLoop,
    limits: Limits,
    tls: TlsFiles | None,
    metadata: Metadata,
) -> Stream:
    channel = open_channel(endpoint, settings, tls)
    call = channel.stream_stream(PATH)(metadata=metadata)
    try:
        refusal = await asyncio.wait_for(accepted(call), settings.connect_timeout_s)
        if refusal is not None:
            raise _not_accepted(endpoint, *refusal)
    except BaseException as error:
        call.cancel()
        await channel.close()
        if isinstance(error, TimeoutError):
            raise LinkError(f"no draft answered at {endpoint} within {settings.connect_timeout_s:g} s") from None
        raise
    stream = RemoteStream(Side.TARGET, endpoint, ClientTransport(channel, call), inbox, settings, loop, limits)
    loop.spawn(stream.run())
    return stream


def check_listener(host: str, settings: LinkSettings) -> None:
    """Find out what a ``Listener`` would refuse, before a model is loaded for it.

    Raises:
        ConfigError: see ``Listener``.
    """
    require_protection(host, "host", settings)
    if settings.tls is not None:
        load_tls(settings.tls, Side.DRAFT)
    Doorman(settings, None, None)


class Listener:
    """Accepts streams of targets; whatever they send goes into one inbox, with the stream it came on.

    A stream shows itself to the owner of the inbox with its first message: a Hello, or ``StreamClosed`` if none came.
    """

    def __init__(
        self,
        host: str,
        port: int,
        inbox: Inbox,
        settings: LinkSettings,
        loop: LinkLoop,
        limits: Limits | None = None,
        max_streams: int | None = None,
        refused: Callable[[str], None] | None = None,
    ) -> None:
        """Listen on ``host:port``; port 0 takes a free one.

        Args:
            host, port: where to listen.
            inbox: of the draft.
            settings: deadlines, TLS, token file.
            loop: owns the server.
            limits: of frames; by default what ``settings`` says.
            max_streams: most streams at once; None: any number.
            refused: called with the reason (``access.Refusal``) of each stream that is not taken, on the loop.

        Raises:
            ConfigError: ``host`` is beyond this machine, and there is neither TLS nor a token; a certificate or token
                file cannot be used.
            LinkError: the port is taken or may not be used.
        """
        require_protection(host, "host", settings)
        self._tls = load_tls(settings.tls, Side.DRAFT) if settings.tls is not None else None
        self._doorman = Doorman(settings, max_streams, refused)
        self._inbox = inbox
        self._settings = settings
        self._loop = loop
        self._limits = limits or _limits(settings)
        self._streams: set[RemoteStream] = set()
        self._server: grpc.aio.Server | None = None
        self._host = host
        _require_free(host, port)
        self._port = loop.call(self._listen(port), settings.connect_timeout_s + _ANSWER_S)
        warn_of_clear_text(host, settings)

    @property
    def port(self) -> int:
        return self._port

    @property
    def endpoint(self) -> str:
        """What a target on this machine gives to ``connect``."""
        return _join_endpoint(self._host, self._port)

    def endpoint_at(self, address: str) -> str:
        """The same for other targets; ``address``: one of this machine's, told where this listens on all of them."""
        return _join_endpoint(address if self._host in _ALL else self._host, self._port)

    def close(self, reason: str = "the draft stops", timeout_s: float = 5.0) -> None:
        """End every stream, release the port; safe to call twice.

        Raises:
            LinkError: the deadline passed.
        """
        if self._loop.running:
            self._loop.call(self.shutdown(reason), timeout_s)

    async def shutdown(self, reason: str) -> None:
        """``close`` for the loop's own thread."""
        server, self._server = self._server, None
        if server is None:
            return
        streams = list(self._streams)
        await asyncio.gather(*(stream.shutdown(reason) for stream in streams))
        await server.stop(LINGER_S)
        self._loop.disown(self)

    async def _listen(self, port: int) -> int:
        server = grpc.aio.server(options=channel_options(self._settings, Side.DRAFT))
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        try:
            bound = bind(server, _join_endpoint(self._host, port), self._tls)
        except RuntimeError as error:
            await server.stop(None)
            raise LinkError(f"cannot listen on {_join_endpoint(self._host, port)}: {error}") from None
        await server.start()
        self._server = server
        self._loop.own(self)
        return bound

    async def _serve(self, _requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._server is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the draft stops")
        refusal = self._doorman.refusal(context.invocation_metadata() or (), context.peer(), len(self._streams))
        if refusal is not None:
            full = refusal is Refusal.FULL
            code = grpc.StatusCode.RESOURCE_EXHAUSTED if full else grpc.StatusCode.UNAUTHENTICATED
            await context.abort(code, SAID[refusal])
        await accept(context)
        stream = RemoteStream(
            Side.DRAFT,
            name_of(context),
            ServerTransport(context),
            self._inbox,
            self._settings,
            self._loop,
            self._limits,
        )
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
