"""The two ends of a gRPC call as frame transports, and the channel arguments of both sides."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import grpc.aio

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import LinkClosed
from ssd_cluster.link._pb import draft_link_pb2 as pb
from ssd_cluster.link.codec import Side
from ssd_cluster.link.remote import Transport
from ssd_cluster.link.tls import TlsFiles

_service = pb.DESCRIPTOR.services_by_name["DraftLink"]
SERVICE: str = _service.full_name
METHOD: str = _service.methods_by_name["Rounds"].name
PATH = f"/{SERVICE}/{METHOD}"

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
ACCEPTED = "ssd-draft"  # initial metadata of a draft that takes the call
_REASON = "ssd-reason-bin"  # trailing metadata: why a draft closed


def channel_options(settings: LinkSettings, side: Side) -> list[tuple[str, int]]:
    """Channel arguments of one side; keepalive finds dead machines below our own pings.

    A draft's stream sees frames of up to twice the limit: it can then say and count what it refuses. gRPC ends what
    brings larger ones, without a word to the draft.
    """
    receive_bytes = settings.frame_bytes * (2 if side is Side.DRAFT else 1)
    keepalive_ms = int(settings.session_ttl_s * 500)
    return [
        ("grpc.max_send_message_length", settings.frame_bytes),
        ("grpc.max_receive_message_length", receive_bytes),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),  # a proxy of the environment is not for this link
        ("grpc.use_local_subchannel_pool", 1),  # a reconnect does not inherit the back-off of a dead one
        ("grpc.so_reuseport", 0),  # a busy port is an error
    ]


def open_channel(endpoint: str, settings: LinkSettings, tls: TlsFiles | None) -> Any:
    """A target's channel, encrypted if there are certificates; on the loop."""
    options: list[tuple[str, int | str]] = [*channel_options(settings, Side.TARGET)]
    if tls is None:
        return grpc.aio.insecure_channel(endpoint, options=options)
    if settings.tls is not None and settings.tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", settings.tls.server_name))
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    return grpc.aio.secure_channel(endpoint, credentials, options=options)


def bind(server: grpc.aio.Server, endpoint: str, tls: TlsFiles | None) -> int:
    """Give a draft's server its port, encrypted if there are certificates; returns the port.

    Raises:
        RuntimeError: it cannot be bound.
    """
    if tls is None:
        return server.add_insecure_port(endpoint)
    credentials = grpc.ssl_server_credentials([(tls.key, tls.certificate)], tls.authority, require_client_auth=True)
    return server.add_secure_port(endpoint, credentials)


async def accept(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Tell a target at once that this is a draft and takes its call."""
    await context.send_initial_metadata(((ACCEPTED, "1"),))


async def accepted(call: Any) -> tuple[grpc.StatusCode, str] | None:
    """Wait until a draft has taken this call: None; or until it has ended without that: its status and details.

    The status alone would not do: gRPC may report the start of a call that was refused before it reports its end.
    """
    try:
        await call.wait_for_connection()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "no details"
    if ACCEPTED in dict(await call.initial_metadata()):
        return None
    return await call.code(), await call.details() or "no details"


def name_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Address of a target, with the common name of its certificate where it has one; for logs."""
    names = context.auth_context().get("x509_common_name", ())
    known = b",".join(names).decode(errors="replace")
    return f"{context.peer()} ({known})" if known else str(context.peer())


class ClientTransport(Transport):
    """The target's end of a call, and the channel that carries nothing else."""

    def __init__(self, channel: Any, call: Any) -> None:
        self._channel = channel
        self._call = call

    async def read(self) -> bytes | None:
        try:
            frame = await self._call.read()
            if frame is not _EOF:
                return bytes(frame)
            reason = dict(await self._call.trailing_metadata()).get(_REASON)
        except grpc.aio.AioRpcError as error:
            raise LinkClosed(explain(error)) from None
        if isinstance(reason, bytes):
            raise LinkClosed(f"closed by the peer: {reason.decode(errors='replace')}")
        return None

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except grpc.aio.AioRpcError as error:
            raise LinkClosed(explain(error)) from None
        except (asyncio.InvalidStateError, grpc.aio.UsageError):
            raise LinkClosed("the call has ended") from None

    async def end_writing(self) -> bool:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.done_writing()
        return True

    async def finish(self, reason: str, clean: bool) -> None:
        self._call.cancel()
        await self._channel.close()
        # An engine may keep a closed stream for long; gRPC's objects (and its poller thread) must not live with it.
        self._call = self._channel = None


class ServerTransport(Transport):
    """The draft's end of a call; the call ends when its handler returns."""

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> bytes | None:
        try:
            frame = await self._context.read()
        except (grpc.aio.BaseError, RuntimeError) as error:
            raise LinkClosed(f"the call broke: {type(error).__name__}") from None
        return None if frame is _EOF else bytes(frame)

    async def write(self, frame: bytes) -> None:
        try:
            await self._context.write(frame)
        except (grpc.aio.BaseError, RuntimeError) as error:
            raise LinkClosed(f"the call broke: {type(error).__name__}") from None

    async def end_writing(self) -> bool:
        return False  # returning from the handler tells it, after the frames that were written

    async def finish(self, reason: str, clean: bool) -> None:
        if clean:
            self._context.set_trailing_metadata(((_REASON, reason.encode()),))
        else:
            self._context.set_code(grpc.StatusCode.ABORTED)
            self._context.set_details(reason)
        self._context = None


def explain(error: grpc.aio.AioRpcError) -> str:
    """A broken call in words."""
    return in_words(error.code(), error.details() or "no details")


def in_words(code: grpc.StatusCode, details: str) -> str:
    """A status in words."""
    return f"{code.name.lower()}: {details}"
