"""Messages to frames and back: one encoder, and one decoder per direction. A frame is one serialised protobuf message.

Decoders trust nothing: whatever the bytes are, the result is a message within ``Limits`` or an ``InvalidFrame``.
Error texts name fields and counts, never token ids.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any, cast

from google.protobuf.message import DecodeError

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link import messages as msg
from ssd_cluster.link import to_draft as down
from ssd_cluster.link import to_target as up
from ssd_cluster.link._pb import draft_link_pb2 as pb
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.messages import Hello, Message, ToDraft, ToTarget, Welcome

Encoder = Callable[[Any, Any], None]
Decoder = Callable[[Any, Limits], Message]

_TO_DRAFT_ENCODERS: dict[type, Encoder] = {
    msg.Hello: down.encode_hello,
    msg.Open: down.encode_open,
    msg.CommitBatch: down.encode_commit,
    msg.Pull: down.encode_pull,
    msg.Close: down.encode_close,
    msg.Attach: down.encode_attach,
    msg.Ping: down.encode_ping,
}
_TO_TARGET_ENCODERS: dict[type, Encoder] = {
    msg.Welcome: up.encode_welcome,
    msg.Opened: up.encode_opened,
    msg.BlockBatch: up.encode_blocks,
    msg.Law: up.encode_law,
    msg.Attached: up.encode_attached,
    msg.Nack: up.encode_nack,
    msg.Load: up.encode_load,
    msg.Pong: up.encode_pong,
}
_TO_DRAFT_DECODERS: dict[str, Decoder] = {
    "hello": down.decode_hello,
    "open": down.decode_open,
    "commit": down.decode_commit,
    "pull": down.decode_pull,
    "close": down.decode_close,
    "attach": down.decode_attach,
    "ping": down.decode_ping,
}
_TO_TARGET_DECODERS: dict[str, Decoder] = {
    "welcome": up.decode_welcome,
    "opened": up.decode_opened,
    "blocks": up.decode_blocks,
    "law": up.decode_law,
    "attached": up.decode_attached,
    "nack": up.decode_nack,
    "load": up.decode_load,
    "pong": up.decode_pong,
}


def encode(message: Message) -> bytes:
    """The frame of a message.

    Raises:
        InvalidFrame: a value does not fit its field (negative, too large, not a number): a bug of the sender.
    """
    kind = type(message)
    frame: pb.ToDraft | pb.ToTarget
    if encoder := _TO_DRAFT_ENCODERS.get(kind):
        frame = pb.ToDraft()
    elif encoder := _TO_TARGET_ENCODERS.get(kind):
        frame = pb.ToTarget()
    else:
        raise InvalidFrame(f"{kind.__name__} is no message of the link")
    try:
        encoder(message, frame)
        return frame.SerializeToString()
    except (struct.error, ValueError, TypeError, OverflowError, KeyError) as error:
        raise InvalidFrame(f"{kind.__name__} does not fit a frame: {type(error).__name__}") from error


def decode_to_draft(data: bytes, limits: Limits) -> ToDraft:
    """The message that a target sent.

    Raises:
        InvalidFrame: the bytes are no valid message within ``limits``.
    """
    return cast(ToDraft, _decode(data, pb.ToDraft, _TO_DRAFT_DECODERS, limits))


def decode_to_target(data: bytes, limits: Limits) -> ToTarget:
    """The message that a draft sent.

    Raises:
        InvalidFrame: the bytes are no valid message within ``limits``.
    """
    return cast(ToTarget, _decode(data, pb.ToTarget, _TO_TARGET_DECODERS, limits))


def _decode(
    data: bytes, envelope: type[pb.ToDraft] | type[pb.ToTarget], decoders: dict[str, Decoder], limits: Limits
) -> Message:
    if len(data) > limits.frame_bytes:
        raise InvalidFrame(f"a frame of {len(data)} bytes, more than {limits.frame_bytes}")
    try:
        frame = envelope.FromString(data)
    except DecodeError:
        raise InvalidFrame("not a protobuf frame") from None
    which = frame.WhichOneof("message")
    if which is None:
        raise InvalidFrame("a frame without a message this version knows")
    return decoders[which](getattr(frame, which), limits)


class Side(StrEnum):
    """Which end of a link: a target sends ``ToDraft`` and receives ``ToTarget``, a draft the reverse."""

    TARGET = "target"
    DRAFT = "draft"


class FrameCodec:
    """The codec of one end of one stream: knows its direction and, once its owner has said it, the vocabulary."""

    def __init__(self, side: Side, limits: Limits) -> None:
        self.side = side
        self.limits = limits

    def encode(self, message: Message) -> bytes:
        """The frame of a message that this side sends.

        Raises:
            InvalidFrame: the message belongs to the other direction, does not fit its fields or exceeds the frame size.
        """
        outgoing = _TO_DRAFT_ENCODERS if self.side is Side.TARGET else _TO_TARGET_ENCODERS
        if type(message) not in outgoing:
            raise InvalidFrame(f"a {self.side} does not send {type(message).__name__}")
        frame = encode(message)
        if len(frame) > self.limits.frame_bytes:
            raise InvalidFrame(
                f"{type(message).__name__} takes {len(frame)} bytes, more than the {self.limits.frame_bytes} of a frame"
            )
        if isinstance(message, Hello | Welcome):
            if message.vocabulary < 1:
                raise InvalidFrame("a vocabulary of no tokens")
            # What this side says of itself binds what it accepts; whether the peer agrees is for the handshake.
            self.limits = replace(self.limits, vocabulary=message.vocabulary)
        return frame

    def decode(self, data: bytes) -> Message:
        """The message in a frame from the other side.

        Raises:
            InvalidFrame: see ``decode_to_draft``.
        """
        if self.side is Side.TARGET:
            return decode_to_target(data, self.limits)
        return decode_to_draft(data, self.limits)
