"""Seeded corruption of messages and frames: what a broken or hostile peer might send. For tests and fault drills."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ssd_cluster.link.limits import MAX_U32
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    Branch,
    CommitBatch,
    CommitRow,
    Law,
    Load,
    Message,
    Nack,
    NackCode,
    Open,
    Opened,
)


def corrupt_message(message: Message, rng: random.Random, vocabulary: int) -> Message:
    """A message of the same type that is still well-formed, and wrong: other tokens, versions or names.

    Types without content that could mislead (Hello, Welcome, Pull, Close, Ping, Pong) come back as they are.
    """
    corrupt = _CORRUPTIONS.get(type(message))
    return message if corrupt is None else corrupt(message, rng, vocabulary)


def corrupt_frame(frame: bytes, rng: random.Random) -> bytes:
    """Bytes near a valid frame (flipped, cut, extended, spliced) or random ones."""
    data = bytearray(frame)
    choice = rng.randrange(5)
    if choice == 0 or not data:
        return rng.randbytes(rng.randrange(64))
    if choice == 1:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif choice == 2:
        del data[rng.randrange(len(data)) :]
    elif choice == 3:
        data += rng.randbytes(rng.randint(1, 16))
    else:
        at = rng.randrange(len(data))
        data[at : at + rng.randint(1, 8)] = rng.randbytes(rng.randint(1, 8))
    return bytes(data)


def _token(rng: random.Random, vocabulary: int) -> int:
    return rng.randrange(vocabulary)


def _tokens(tokens: tuple[int, ...], rng: random.Random, vocabulary: int) -> tuple[int, ...]:
    return tuple(_token(rng, vocabulary) for _ in tokens)


def _near(value: int, rng: random.Random) -> int:
    """Another value close by, as an off-by-one or a late message would have."""
    return max(0, value + rng.choice((-3, -2, -1, 1, 2, 3)))


def _branch(branch: Branch, rng: random.Random, vocabulary: int) -> Branch:
    return replace(branch, t_star=_token(rng, vocabulary), tokens=_tokens(branch.tokens, rng, vocabulary))


def _block(block: Block, rng: random.Random, vocabulary: int) -> Block:
    choice = rng.randrange(6)
    if choice == 0:
        return replace(block, fingerprint=rng.randint(0, MAX_U32))
    if choice == 1:
        return replace(block, epoch=_near(block.epoch, rng))
    if choice == 2:
        return replace(block, base_len=_near(block.base_len, rng))
    if choice == 3:
        return replace(block, session=rng.getrandbits(64))
    if choice == 4:
        return replace(block, branches=tuple(replace(b, k=rng.randrange(8)) for b in block.branches))
    return replace(block, branches=tuple(_branch(b, rng, vocabulary) for b in block.branches))


def _blocks(message: BlockBatch, rng: random.Random, vocabulary: int) -> BlockBatch:
    return BlockBatch(tuple(_block(block, rng, vocabulary) for block in message.blocks))


def _row(row: CommitRow, rng: random.Random, vocabulary: int) -> CommitRow:
    choice = rng.randrange(5)
    if choice == 0:
        return replace(row, epoch=_near(row.epoch, rng))
    if choice == 1:
        return replace(row, from_len=_near(row.from_len, rng))
    if choice == 2:
        return replace(row, session=rng.getrandbits(64))
    if choice == 3:
        return replace(row, proposal=_tokens(row.proposal, rng, vocabulary))
    return replace(row, tokens=_tokens(row.tokens, rng, vocabulary))


def _commit(message: CommitBatch, rng: random.Random, vocabulary: int) -> CommitBatch:
    return CommitBatch(tuple(_row(row, rng, vocabulary) for row in message.rows))


def _open(message: Open, rng: random.Random, vocabulary: int) -> Open:
    return replace(message, tokens=_tokens(message.tokens, rng, vocabulary))


def _opened(message: Opened, rng: random.Random, vocabulary: int) -> Opened:
    return replace(message, have_len=_near(message.have_len, rng), epoch=_near(message.epoch, rng))


def _nack(message: Nack, rng: random.Random, vocabulary: int) -> Nack:
    return replace(message, code=rng.choice(list(NackCode)), have_len=_near(message.have_len, rng))


def _load(message: Load, rng: random.Random, vocabulary: int) -> Load:
    return replace(message, row_credit=rng.randrange(64), session_credit=rng.randrange(8))


def _law(message: Law, rng: random.Random, vocabulary: int) -> Law:
    choice = rng.randrange(3)
    if choice == 0:
        return replace(message, epoch=_near(message.epoch, rng))
    if choice == 1:
        return replace(message, session=rng.getrandbits(64))
    return replace(message, fingerprint=rng.randint(0, MAX_U32))


_CORRUPTIONS: dict[type, Callable[[Any, random.Random, int], Message]] = {
    BlockBatch: _blocks,
    CommitBatch: _commit,
    Open: _open,
    Opened: _opened,
    Nack: _nack,
    Load: _load,
    Law: _law,
}
