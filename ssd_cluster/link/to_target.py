"""Encoders and decoders of what a draft says to a target. ``codec`` is the public face."""

from __future__ import annotations

import math
from itertools import chain

from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link import columns as col
from ssd_cluster.link._pb import draft_link_pb2 as pb
from ssd_cluster.link.columns import (
    F32,
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
from ssd_cluster.link.laws import check_law
from ssd_cluster.link.limits import MAX_U8, Limits
from ssd_cluster.link.messages import (
    Attached,
    Block,
    BlockBatch,
    Branch,
    Law,
    Load,
    Nack,
    NackCode,
    Opened,
    Pong,
    StepTimeModel,
    Welcome,
)

_NACK_NUMBER = {
    NackCode.UNKNOWN: 1,
    NackCode.CONFLICT: 2,
    NackCode.GAP: 3,
    NackCode.EVICTED: 4,
    NackCode.BUSY: 5,
    NackCode.TOO_LONG: 6,
    NackCode.MISMATCH: 7,
    NackCode.BAD_TOKEN: 8,
    NackCode.DRAINING: 9,
}
_NACK_OF = {number: code for code, number in _NACK_NUMBER.items()}
_JIT = 1


def encode_welcome(message: Welcome, frame: pb.ToTarget) -> None:
    welcome = frame.welcome
    welcome.protocol = message.protocol
    welcome.draft_id = message.draft_id
    welcome.incarnation = message.incarnation
    welcome.model_hash = message.model_hash
    welcome.tokenizer_hash = message.tokenizer_hash
    welcome.vocabulary = message.vocabulary
    welcome.k_max = message.k_max
    welcome.max_context = message.max_context
    welcome.row_credit = message.row_credit
    welcome.session_credit = message.session_credit
    welcome.step_base_us = message.step_time.base_us
    welcome.step_per_row_us = message.step_time.per_row_us
    welcome.session_ttl_s = message.session_ttl_s
    welcome.trust_domain = message.trust_domain


def decode_welcome(welcome: pb.Welcome, limits: Limits) -> Welcome:
    return Welcome(
        draft_id=check_text(welcome.draft_id, "draft_id", limits.text),
        incarnation=welcome.incarnation,
        model_hash=check_text(welcome.model_hash, "model_hash", limits.text),
        tokenizer_hash=check_text(welcome.tokenizer_hash, "tokenizer_hash", limits.text),
        vocabulary=check_vocabulary(welcome.vocabulary),
        k_max=check_size(welcome.k_max, MAX_U8, "k_max"),
        max_context=welcome.max_context,
        row_credit=welcome.row_credit,
        session_credit=welcome.session_credit,
        step_time=StepTimeModel(
            check_number(welcome.step_base_us, "step_base_us"),
            check_number(welcome.step_per_row_us, "step_per_row_us"),
        ),
        session_ttl_s=check_number(welcome.session_ttl_s, "session_ttl_s", lambda value: value > 0),
        protocol=welcome.protocol,
        trust_domain=check_text(welcome.trust_domain, "trust_domain", limits.text),
    )


def encode_opened(message: Opened, frame: pb.ToTarget) -> None:
    opened = frame.opened
    opened.SetInParent()
    opened.session = message.session
    opened.epoch = message.epoch
    opened.have_len = message.have_len


def decode_opened(opened: pb.Opened, limits: Limits) -> Opened:
    return Opened(opened.session, opened.epoch, opened.have_len)


def encode_blocks(message: BlockBatch, frame: pb.ToTarget) -> None:
    blocks, batch = message.blocks, frame.blocks
    branches = [branch for block in blocks for branch in block.branches]
    batch.SetInParent()
    batch.session = pack(U64, [block.session for block in blocks])
    batch.epoch = pack(U32, [block.epoch for block in blocks])
    batch.block_seq = pack(U32, [block.block_seq for block in blocks])
    batch.base_len = pack(U32, [block.base_len for block in blocks])
    batch.fingerprint = pack(U32, [block.fingerprint for block in blocks])
    batch.branch_count = pack(U16, [len(block.branches) for block in blocks])
    batch.k = pack(U8, [branch.k for branch in branches])
    batch.t_star = pack(U32, [branch.t_star for branch in branches])
    batch.score = pack(F32, [branch.score for branch in branches])
    batch.flags = pack(U8, [branch.jit * _JIT for branch in branches])
    batch.token_count = pack(U8, [len(branch.tokens) for branch in branches])
    batch.tokens = pack(U32, list(chain.from_iterable(branch.tokens for branch in branches)))


def decode_blocks(batch: pb.BlockBatch, limits: Limits) -> BlockBatch:
    n = col.count_of(U64, batch.session, "session", limits.sessions)
    branch_count = col.unpack(U16, batch.branch_count, n, "branch_count")
    check_below(branch_count, limits.branches + 1, "branch_count")
    blocks = zip(
        col.unpack(U64, batch.session, n, "session"),
        col.unpack(U32, batch.epoch, n, "epoch"),
        col.unpack(U32, batch.block_seq, n, "block_seq"),
        col.unpack(U32, batch.base_len, n, "base_len"),
        col.unpack(U32, batch.fingerprint, n, "fingerprint"),
        col.split(_branches(batch, sum(branch_count), limits), branch_count),
        strict=True,
    )
    return BlockBatch(tuple(Block(*block) for block in blocks))


def _branches(batch: pb.BlockBatch, count: int, limits: Limits) -> tuple[Branch, ...]:
    k = col.unpack(U8, batch.k, count, "k")
    t_star = col.unpack(U32, batch.t_star, count, "t_star")
    score = col.unpack(F32, batch.score, count, "score")
    flags = col.unpack(U8, batch.flags, count, "flags")
    token_count = col.unpack(U8, batch.token_count, count, "token_count")
    tokens = col.unpack(U32, batch.tokens, sum(token_count), "tokens")
    check_below(k, limits.k_max + 1, "k")
    check_below(token_count, limits.k_max + 1, "token_count")
    check_below(flags, _JIT + 1, "flags")
    check_below(t_star, limits.vocabulary, "t_star")
    check_below(tokens, limits.vocabulary, "tokens")
    if any(map(math.isnan, score)):
        raise InvalidFrame("a score is not a number")
    return tuple(map(Branch, k, t_star, col.split(tokens, token_count), score, map(bool, flags)))


def encode_law(message: Law, frame: pb.ToTarget) -> None:
    law = frame.law
    law.session = message.session
    law.epoch = message.epoch
    law.fingerprint = message.fingerprint
    law.kind = col.KIND_NUMBER[message.kind]  # type: ignore[assignment]
    law.row_size = pack(U32, message.row_size)
    law.ids = message.ids
    law.probabilities = message.probabilities
    law.channel = message.channel
    law.transfer = message.transfer


def decode_law(law: pb.Law, limits: Limits) -> Law:
    row_size = col.free_column(U32, law.row_size, "row_size", limits.k_max)
    kind = col.kind_of(law.kind)
    message = Law(
        law.session,
        law.epoch,
        law.fingerprint,
        kind,
        row_size,
        law.ids,
        law.probabilities,
        law.channel,
        law.transfer,
    )
    check_law(message, limits.vocabulary)
    return message


def encode_attached(message: Attached, frame: pb.ToTarget) -> None:
    attached = frame.attached
    attached.channel = message.channel
    attached.key = message.key
    attached.value = message.value
    attached.refusal = message.refusal


def decode_attached(attached: pb.Attached, limits: Limits) -> Attached:
    return Attached(
        attached.channel,
        check_text(attached.key, "key", limits.text),
        col.check_bytes(attached.value, "value", limits.store_value),
        check_text(attached.refusal, "refusal", limits.text),
    )


def encode_nack(message: Nack, frame: pb.ToTarget) -> None:
    nack = frame.nack
    nack.session = message.session
    nack.epoch = message.epoch
    nack.code = _NACK_NUMBER[message.code]  # type: ignore[assignment]
    nack.have_len = message.have_len
    nack.retry_after_ms = message.retry_after_ms
    nack.detail = message.detail


def decode_nack(nack: pb.Nack, limits: Limits) -> Nack:
    code = _NACK_OF.get(nack.code)
    if code is None:
        raise InvalidFrame(f"unknown nack code {nack.code}")
    detail = check_text(nack.detail, "detail", limits.text)
    return Nack(nack.session, nack.epoch, code, nack.have_len, nack.retry_after_ms, detail)


def encode_load(message: Load, frame: pb.ToTarget) -> None:
    load = frame.load
    load.SetInParent()
    load.row_credit = message.row_credit
    load.session_credit = message.session_credit
    load.queue_us = message.queue_us
    load.step_us = message.step_us
    load.draining = message.draining


def decode_load(load: pb.Load, limits: Limits) -> Load:
    return Load(load.row_credit, load.session_credit, load.queue_us, load.step_us, load.draining)


def encode_pong(message: Pong, frame: pb.ToTarget) -> None:
    frame.pong.SetInParent()
    frame.pong.token = message.token


def decode_pong(pong: pb.Pong, limits: Limits) -> Pong:
    return Pong(pong.token)
