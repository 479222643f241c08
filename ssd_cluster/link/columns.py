"""Little-endian columns of numbers inside frames, and the checks that every decoder shares.

``struct`` rather than numpy: rows become Python integers anyway, and for the 1 to 200 numbers of a round one C call per
column costs a fraction of a microsecond.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.types import ProposalKind

U8, U16, U32, U64, F32 = "B", "H", "I", "Q", "f"
_WIDTH = {U8: 1, U16: 2, U32: 4, U64: 8, F32: 4}

KIND_NUMBER: dict[ProposalKind, int] = {
    ProposalKind.NONE: 1,
    ProposalKind.COUPLED: 2,
    ProposalKind.DELTA: 3,
    ProposalKind.SPARSE: 4,
    ProposalKind.DENSE: 5,
}
KIND_OF = {number: kind for kind, number in KIND_NUMBER.items()}


def pack(code: str, values: Sequence[Any]) -> bytes:
    """One column; a value outside the width raises ``struct.error``, which ``codec.encode`` reports."""
    return struct.pack(f"<{len(values)}{code}", *values)


def unpack(code: str, data: bytes, count: int, name: str) -> tuple[Any, ...]:
    """A column of exactly ``count`` values."""
    if len(data) != count * _WIDTH[code]:
        raise InvalidFrame(f"{name} holds {len(data)} bytes, not {count} values of {_WIDTH[code]}")
    return struct.unpack(f"<{count}{code}", data)


def count_of(code: str, data: bytes, name: str, cap: int) -> int:
    """Number of values in a column whose length is not known from elsewhere, at most ``cap``."""
    count, rest = divmod(len(data), _WIDTH[code])
    if rest:
        raise InvalidFrame(f"{name} holds {len(data)} bytes, not a multiple of {_WIDTH[code]}")
    if count > cap:
        raise InvalidFrame(f"{name} holds {count} values, more than {cap}")
    return count


def free_column(code: str, data: bytes, name: str, cap: int) -> tuple[Any, ...]:
    """A column of any length up to ``cap``."""
    return unpack(code, data, count_of(code, data, name, cap), name)


def split(values: tuple[Any, ...], counts: Iterable[int]) -> list[tuple[Any, ...]]:
    """Rows of a ragged column; the counts must add up to its length (``unpack`` with their sum checks that)."""
    return [values[start:end] for start, end in pairwise(accumulate(counts, initial=0))]


def check_below(values: Sequence[int], bound: int, name: str) -> None:
    """All values are below ``bound``; the offending value is not named (it may be a token)."""
    if values and max(values) >= bound:
        raise InvalidFrame(f"{name} holds a value of {bound} or more")


def check_text(text: str, name: str, cap: int) -> str:
    if len(text) > cap:
        raise InvalidFrame(f"{name} has {len(text)} characters, more than {cap}")
    return text


def check_bytes(data: bytes, name: str, cap: int) -> bytes:
    if len(data) > cap:
        raise InvalidFrame(f"{name} has {len(data)} bytes, more than {cap}")
    return data


def check_number(value: float, name: str, accept: Callable[[float], bool] = lambda value: value >= 0) -> float:
    """A finite number that ``accept`` agrees with."""
    if not math.isfinite(value) or not accept(value):
        raise InvalidFrame(f"{name} is out of range")
    return value


def check_size(value: int, bound: int, name: str) -> int:
    """An integer of at most ``bound``."""
    if value > bound:
        raise InvalidFrame(f"{name} is {value}, more than {bound}")
    return value


def check_vocabulary(size: int) -> int:
    if size < 1:
        raise InvalidFrame("a vocabulary of no tokens")
    return size


def kind_of(number: int) -> ProposalKind:
    kind = KIND_OF.get(number)
    if kind is None:
        raise InvalidFrame(f"unknown proposal kind {number}")
    return kind
