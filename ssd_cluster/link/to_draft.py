"""Encoders and decoders of what a target says to a draft. ``codec`` is the public face."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link import columns as col
from ssd_cluster.link._pb import draft_link_pb2 as pb
from ssd_cluster.link.columns import (
    U8,
    U16,
    U32,
    U64,
    check_below,
    check_number,
    check_size,
    check_text,
    check_vocabulary,
    pack,
)
from ssd_cluster.link.limits import MAX_U8, MAX_U16, MAX_U32, Limits
from ssd_cluster.link.messages import Attach, Close, CommitBatch, CommitRow, Hello, Next, Open, Ping, Pull
from ssd_cluster.types import BlockOrigin, ProposalKind

_NEXT_NUMBER = {Next.NONE: 1, Next.WAIT: 2, Next.TOKENS: 3}
_NEXT_OF = {number: name for name, number in _NEXT_NUMBER.items()}
_FINISH, _HAS_ORIGIN = 1, 2


def encode_hello(message: Hello, frame: pb.ToDraft) -> None:
    hello = frame.hello
    hello.protocol = message.protocol
    hello.target_id = message.target_id
    hello.incarnation = message.incarnation
    hello.tokenizer_hash = message.tokenizer_hash
    hello.vocabulary = message.vocabulary
    hello.kinds.extend(col.KIND_NUMBER[kind] for kind in message.kinds)  # type: ignore[misc]
    hello.trust_domain = message.trust_domain


def decode_hello(hello: pb.Hello, limits: Limits) -> Hello:
    if len(hello.kinds) > len(col.KIND_OF):
        raise InvalidFrame(f"{len(hello.kinds)} proposal kinds")
    return Hello(
        target_id=check_text(hello.target_id, "target_id", limits.text),
        incarnation=hello.incarnation,
        tokenizer_hash=check_text(hello.tokenizer_hash, "tokenizer_hash", limits.text),
        vocabulary=check_vocabulary(hello.vocabulary),
        kinds=tuple(col.kind_of(kind) for kind in hello.kinds),
        protocol=hello.protocol,
        trust_domain=check_text(hello.trust_domain, "trust_domain", limits.text),
    )


def encode_open(message: Open, frame: pb.ToDraft) -> None:
    opened = frame.open
    opened.session = message.session
    opened.epoch = message.epoch
    opened.tokens = pack(U32, message.tokens)
    opened.kind = col.KIND_NUMBER[message.kind]  # type: ignore[assignment]
    opened.temperature = message.temperature
    opened.seed = message.seed
    opened.top_k = message.top_k
    opened.top_p = message.top_p
    opened.stop_ids = pack(U32, message.stop_ids)
    opened.max_len = message.max_len
    opened.k = message.k
    opened.rows = message.rows
    opened.priority = message.priority
    opened.lengths = pack(U8, message.lengths)
    opened.top_m = message.top_m
    opened.saguaro_c = message.saguaro_c
    opened.saguaro_f = message.saguaro_f


def decode_open(opened: pb.Open, limits: Limits) -> Open:
    tokens = col.free_column(U32, opened.tokens, "tokens", MAX_U32)
    stop_ids = col.free_column(U32, opened.stop_ids, "stop_ids", limits.stop_ids)
    lengths = col.free_column(U8, opened.lengths, "lengths", limits.k_max + 1)
    if not tokens:
        raise InvalidFrame("a session needs at least one token")
    check_below(tokens, limits.vocabulary, "tokens")
    check_below(stop_ids, limits.vocabulary, "stop_ids")
    check_below(lengths, limits.k_max + 1, "lengths")
    has_c = opened.HasField("saguaro_c")
    return Open(
        session=opened.session,
        epoch=opened.epoch,
        tokens=tokens,
        kind=col.kind_of(opened.kind),
        temperature=check_number(opened.temperature, "temperature"),
        seed=opened.seed,
        top_k=opened.top_k,
        top_p=check_number(opened.top_p, "top_p", lambda value: 0 < value <= 1),
        stop_ids=stop_ids,
        max_len=opened.max_len,
        k=check_size(opened.k, MAX_U8, "k"),
        rows=check_size(opened.rows, MAX_U16, "rows"),
        priority=opened.priority,
        lengths=lengths,
        top_m=check_size(opened.top_m, MAX_U16, "top_m"),
        saguaro_c=check_number(opened.saguaro_c, "saguaro_c", lambda c: 0 <= c <= 1) if has_c else 1.0,
        saguaro_f=check_size(opened.saguaro_f, MAX_U16, "saguaro_f"),
    )


def encode_commit(message: CommitBatch, frame: pb.ToDraft) -> None:
    rows, batch = message.rows, frame.commit
    batch.SetInParent()
    batch.session = pack(U64, [row.session for row in rows])
    batch.epoch = pack(U32, [row.epoch for row in rows])
    batch.from_len = pack(U32, [row.from_len for row in rows])
    batch.token_count = pack(U32, [len(row.tokens) for row in rows])
    batch.tokens = pack(U32, list(chain.from_iterable(row.tokens for row in rows)))
    batch.next = pack(U8, [_NEXT_NUMBER[row.next] for row in rows])
    batch.k = pack(U8, [row.k for row in rows])
    batch.rows = pack(U16, [row.rows for row in rows])
    batch.counter = pack(U32, [row.counter for row in rows])
    batch.due_us = pack(U32, [row.due_us for row in rows])
    batch.deadline_us = pack(U32, [row.deadline_us for row in rows])
    batch.proposal_count = pack(U8, [len(row.proposal) for row in rows])
    batch.proposal = pack(U32, list(chain.from_iterable(row.proposal for row in rows)))
    batch.proposal_kind = pack(U8, [col.KIND_NUMBER[row.proposal_kind] for row in rows])
    batch.flags = pack(U8, [row.finish * _FINISH + (row.origin is not None) * _HAS_ORIGIN for row in rows])
    if any(row.shards > 1 for row in rows):
        batch.shard = pack(U8, [row.shard for row in rows])
        batch.shards = pack(U8, [row.shards for row in rows])
    origins = [row.origin for row in rows if row.origin is not None]
    batch.origin_block = pack(U32, [origin.block_seq for origin in origins])
    batch.origin_branch = pack(U16, [origin.branch for origin in origins])
    batch.origin_offset = pack(U8, [origin.offset for origin in origins])


def decode_commit(batch: pb.CommitBatch, limits: Limits) -> CommitBatch:
    n = col.count_of(U64, batch.session, "session", limits.sessions)
    token_count = col.unpack(U32, batch.token_count, n, "token_count")
    tokens = col.unpack(U32, batch.tokens, sum(token_count), "tokens")
    proposal_count = col.unpack(U8, batch.proposal_count, n, "proposal_count")
    proposal = col.unpack(U32, batch.proposal, sum(proposal_count), "proposal")
    check_below(tokens, limits.vocabulary, "tokens")
    check_below(proposal, limits.vocabulary, "proposal")
    check_below(proposal_count, limits.k_max + 1, "proposal_count")
    flags = col.unpack(U8, batch.flags, n, "flags")
    check_below(flags, (_FINISH | _HAS_ORIGIN) + 1, "flags")
    rows = zip(
        col.unpack(U64, batch.session, n, "session"),
        col.unpack(U32, batch.epoch, n, "epoch"),
        col.unpack(U32, batch.from_len, n, "from_len"),
        col.split(tokens, token_count),
        map(_next_of, col.unpack(U8, batch.next, n, "next")),
        col.unpack(U8, batch.k, n, "k"),
        col.unpack(U16, batch.rows, n, "rows"),
        col.unpack(U32, batch.counter, n, "counter"),
        col.unpack(U32, batch.due_us, n, "due_us"),
        col.unpack(U32, batch.deadline_us, n, "deadline_us"),
        col.split(proposal, proposal_count),
        map(col.kind_of, col.unpack(U8, batch.proposal_kind, n, "proposal_kind")),
        _origins(batch, flags),
        [bool(flag & _FINISH) for flag in flags],
        *_shards(batch, n),
        strict=True,
    )
    return CommitBatch(tuple(_checked_row(CommitRow(*row)) for row in rows))


def _shards(batch: pb.CommitBatch, n: int) -> tuple[Sequence[int], Sequence[int]]:
    """Columns ``shard`` and ``shards``; targets that know nothing of them send none."""
    if not batch.shard and not batch.shards:
        return [0] * n, [1] * n
    return col.unpack(U8, batch.shard, n, "shard"), col.unpack(U8, batch.shards, n, "shards")


def _next_of(number: int) -> Next:
    try:
        return _NEXT_OF[number]
    except KeyError:
        raise InvalidFrame(f"unknown next {number}") from None


def _origins(batch: pb.CommitBatch, flags: tuple[int, ...]) -> list[BlockOrigin | None]:
    count = sum(1 for flag in flags if flag & _HAS_ORIGIN)
    origins = map(
        BlockOrigin,
        col.unpack(U32, batch.origin_block, count, "origin_block"),
        col.unpack(U16, batch.origin_branch, count, "origin_branch"),
        col.unpack(U8, batch.origin_offset, count, "origin_offset"),
    )
    return [next(origins) if flag & _HAS_ORIGIN else None for flag in flags]


def _checked_row(row: CommitRow) -> CommitRow:
    if row.base_len > MAX_U32:
        raise InvalidFrame("the committed length does not fit 32 bits")
    if row.next is not Next.TOKENS and (row.proposal or row.origin is not None):
        raise InvalidFrame(f"a proposal comes with next = {row.next}")
    if row.proposal and row.proposal_kind is ProposalKind.NONE:
        raise InvalidFrame("proposed tokens of kind none")
    if row.shard >= row.shards:
        raise InvalidFrame("a shard is one of at least one")
    return row


def encode_pull(message: Pull, frame: pb.ToDraft) -> None:
    pull = frame.pull
    pull.session = message.session
    pull.epoch = message.epoch
    pull.base_len = message.base_len
    pull.k = message.k
    pull.deadline_us = message.deadline_us


def decode_pull(pull: pb.Pull, limits: Limits) -> Pull:
    return Pull(pull.session, pull.epoch, pull.base_len, check_size(pull.k, MAX_U8, "k"), pull.deadline_us)


def encode_close(message: Close, frame: pb.ToDraft) -> None:
    frame.close.SetInParent()
    frame.close.sessions = pack(U64, message.sessions)


def decode_close(close: pb.Close, limits: Limits) -> Close:
    return Close(col.free_column(U64, close.sessions, "sessions", limits.sessions))


def encode_attach(message: Attach, frame: pb.ToDraft) -> None:
    attach = frame.attach
    attach.channel = message.channel
    attach.backend = message.backend
    attach.capacity = message.capacity
    attach.key = message.key
    attach.value = message.value


def decode_attach(attach: pb.Attach, limits: Limits) -> Attach:
    if attach.channel < 1:
        raise InvalidFrame("a tensor channel without a number")
    return Attach(
        attach.channel,
        check_text(attach.backend, "backend", limits.text),
        attach.capacity,
        check_text(attach.key, "key", limits.text),
        col.check_bytes(attach.value, "value", limits.store_value),
    )


def encode_ping(message: Ping, frame: pb.ToDraft) -> None:
    frame.ping.SetInParent()
    frame.ping.token = message.token


def decode_ping(ping: pb.Ping, limits: Limits) -> Ping:
    return Ping(ping.token)
