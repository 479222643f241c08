"""What rank 0 and the others tell each other beside the tensors: msgpack, one message per frame."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from typing import Any

import msgpack

from ssd_cluster.errors import RankError
from ssd_cluster.model.batch import CausalSpan, ForwardBatch, MaskedSpan, Span, TreeSpan


@dataclass(frozen=True, slots=True)
class Hello:
    """A rank's first message; ``token`` shows that it was started by rank 0. ``error``: why it cannot take part."""

    rank: int
    token: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Rank 0's answer when all ranks are there; ``store_port`` is where they meet for the exchange of tensors."""

    store_port: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A rank has loaded its part of the checkpoint with this hash."""

    model_hash: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank cannot go on."""

    message: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Run ``ModelRunner.keep``."""

    block_table: list[int]
    start: int
    nodes: list[int]


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Sent between forwards."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Yes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End."""


Message = Hello | Welcome | Ready | Failed | Keep | Ping | Pong | Stop | ForwardBatch

_FORWARD = 0
_PLAIN: tuple[type[Any], ...] = (Hello, Welcome, Ready, Failed, Keep, Ping, Pong, Stop)
_SPANS: tuple[type[Any], ...] = (CausalSpan, TreeSpan, MaskedSpan)


def encode(message: Message) -> bytes:
    """A frame's contents."""
    if isinstance(message, ForwardBatch):
        spans = [
            [_SPANS.index(type(span)), *(getattr(span, one.name) for one in fields(span))] for span in message.spans
        ]
        packed: bytes = msgpack.packb([_FORWARD, *spans])
    else:
        packed = msgpack.packb([1 + _PLAIN.index(type(message)), *astuple(message)])
    return packed


def decode(frame: bytes) -> Message:
    """The message of a frame.

    Raises:
        RankError: there is none in it.
    """
    try:
        kind, *values = msgpack.unpackb(frame)
        if kind == _FORWARD:
            return ForwardBatch([_span(*value) for value in values])
        message: Message = _PLAIN[kind - 1](*values)
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise RankError(f"a rank sent something else than a message: {error!r}") from None
    return message


def _span(kind: int, *values: Any) -> Span:
    span: Span = _SPANS[kind](*values)
    return span
