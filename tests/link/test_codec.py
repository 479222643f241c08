"""Frames: every message survives the trip, and nothing but a valid one comes out of bytes from a peer."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
import support.link_strategies as some
from hypothesis import given, settings
from hypothesis import strategies as st
from support.links import SESSION, TO_DRAFT, TO_TARGET, block, commit_row, hello, welcome

from ssd_cluster.errors import ConfigError, InvalidFrame
from ssd_cluster.link._pb import draft_link_pb2 as pb
from ssd_cluster.link.codec import FrameCodec, Side, decode_to_draft, decode_to_target, encode
from ssd_cluster.link.garbage import corrupt_frame
from ssd_cluster.link.laws import pack_law
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    Branch,
    Close,
    CommitBatch,
    Message,
    Next,
    Open,
    Opened,
    Ping,
    StreamClosed,
)
from ssd_cluster.types import ProposalKind

LIMITS = Limits()
unhurried = settings(deadline=None, max_examples=80)


@pytest.mark.parametrize("message", TO_DRAFT, ids=lambda message: type(message).__name__)
def test_samples_to_draft_survive(message: Message) -> None:
    assert decode_to_draft(encode(message), LIMITS) == message


@pytest.mark.parametrize("message", TO_TARGET, ids=lambda message: type(message).__name__)
def test_samples_to_target_survive(message: Message) -> None:
    assert decode_to_target(encode(message), LIMITS) == message


def test_the_samples_cover_every_message_of_the_protocol() -> None:
    down = {descriptor.message_type.name for descriptor in pb.ToDraft.DESCRIPTOR.fields}
    up = {descriptor.message_type.name for descriptor in pb.ToTarget.DESCRIPTOR.fields}
    assert {type(message).__name__ for message in TO_DRAFT} == down
    assert {type(message).__name__ for message in TO_TARGET} == up


@unhurried
@given(some.to_draft)
def test_any_message_to_draft_survives(message: Message) -> None:
    assert decode_to_draft(encode(message), LIMITS) == message


@unhurried
@given(some.to_target)
def test_any_message_to_target_survives(message: Message) -> None:
    assert decode_to_target(encode(message), LIMITS) == message


def test_a_block_of_24_branches_by_7_tokens_is_about_a_kilobyte() -> None:
    assert len(encode(BlockBatch((block(branches=24, depth=7),)))) < 1024


def test_numpy_like_integers_are_accepted() -> None:
    numpy = pytest.importorskip("numpy")
    tokens = tuple(numpy.array([1, 2, 3]))
    batch = decode_to_draft(encode(CommitBatch((commit_row(tokens=tokens),))), LIMITS)
    assert isinstance(batch, CommitBatch)
    assert batch.rows[0].tokens == (1, 2, 3)
    assert all(type(token) is int for token in batch.rows[0].tokens)


@pytest.mark.parametrize(
    "message",
    [
        CommitBatch((commit_row(tokens=(-1,)),)),
        CommitBatch((commit_row(tokens=(2**32,)),)),
        CommitBatch((commit_row(k=256),)),
        CommitBatch((commit_row(tokens=(1.5,)),)),
        Opened(2**64, 0, 0),
        Opened(1, -1, 0),
        Close((2**64,)),
        StreamClosed("local"),
    ],
    ids=str,
)
def test_what_does_not_fit_its_field_is_refused_by_the_encoder(message: Message) -> None:
    with pytest.raises(InvalidFrame):
        encode(message)


Change = Callable[[object], None]


def _set(name: str, value: object) -> Change:
    return lambda part: setattr(part, name, value)


_COMMIT_CHANGES = {
    "session not whole": _set("session", bytes(7)),
    "epoch of another length": _set("epoch", bytes(8)),
    "missing column": _set("counter", b""),
    "counts beyond the tokens": _set("token_count", struct.pack("<I", 4)),
    "huge count": _set("token_count", struct.pack("<I", 2**32 - 1)),
    "tokens not whole": _set("tokens", bytes(13)),
    "unknown next": _set("next", b"\x09"),
    "next 0": _set("next", b"\x00"),
    "unknown kind": _set("proposal_kind", b"\x0b"),
    "unknown flag": _set("flags", b"\x06"),
    "origin without its columns": _set("origin_block", b""),
    "length beyond 32 bits": _set("from_len", struct.pack("<I", 2**32 - 1)),
    "proposal of kind none": _set("proposal_kind", b"\x01"),
    "proposal without next": _set("next", b"\x01"),
}
_BLOCK_CHANGES = {
    "branch count": _set("branch_count", struct.pack("<H", 4)),
    "branch cap": _set("branch_count", struct.pack("<H", 2000)),
    "k": _set("k", bytes([0, 65, 2])),
    "score not a number": _set("score", struct.pack("<3f", 0, float("nan"), 0)),
    "flags": _set("flags", b"\x00\x02\x00"),
    "token count": _set("token_count", b"\x04\x04\x05"),
    "too deep": _set("token_count", b"\x41\x04\x04"),
    "fingerprint": _set("fingerprint", b""),
}


@pytest.mark.parametrize("change", _COMMIT_CHANGES.values(), ids=_COMMIT_CHANGES.keys())
def test_inconsistent_commits_are_invalid(change: Change) -> None:
    frame = pb.ToDraft.FromString(encode(CommitBatch((commit_row(),))))
    assert decode_to_draft(frame.SerializeToString(), LIMITS)
    change(frame.commit)
    with pytest.raises(InvalidFrame):
        decode_to_draft(frame.SerializeToString(), LIMITS)


@pytest.mark.parametrize("change", _BLOCK_CHANGES.values(), ids=_BLOCK_CHANGES.keys())
def test_inconsistent_blocks_are_invalid(change: Change) -> None:
    frame = pb.ToTarget.FromString(encode(BlockBatch((block(),))))
    assert decode_to_target(frame.SerializeToString(), LIMITS)
    change(frame.blocks)
    with pytest.raises(InvalidFrame):
        decode_to_target(frame.SerializeToString(), LIMITS)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("hello", _set("vocabulary", 0)),
        ("hello", lambda hello: hello.kinds.append(9)),
        ("hello", _set("target_id", "x" * 2000)),
        ("open", _set("tokens", b"")),
        ("open", _set("kind", 17)),
        ("open", _set("temperature", float("nan"))),
        ("open", _set("temperature", -0.5)),
        ("open", _set("top_p", 0.0)),
        ("open", _set("top_p", float("inf"))),
        ("open", _set("k", 300)),
        ("open", _set("rows", 70_000)),
        ("open", _set("top_m", 70_000)),
        ("open", _set("saguaro_c", 1.5)),
        ("open", _set("saguaro_c", float("nan"))),
        ("open", _set("saguaro_f", 70_000)),
        ("hello", _set("trust_domain", "x" * 2000)),
        ("open", _set("lengths", b"\x41")),
        ("open", _set("stop_ids", bytes(4 * 5000))),
        ("pull", _set("k", 300)),
        ("close", _set("sessions", bytes(8 * 5000))),
    ],
)
def test_fields_out_of_range_are_invalid_to_draft(part: str, change: Change) -> None:
    message = next(m for m in TO_DRAFT if pb.ToDraft.FromString(encode(m)).WhichOneof("message") == part)
    frame = pb.ToDraft.FromString(encode(message))
    change(getattr(frame, part))
    with pytest.raises(InvalidFrame):
        decode_to_draft(frame.SerializeToString(), LIMITS)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("welcome", _set("vocabulary", 0)),
        ("welcome", _set("step_base_us", -1.0)),
        ("welcome", _set("session_ttl_s", 0.0)),
        ("welcome", _set("session_ttl_s", float("nan"))),
        ("welcome", _set("trust_domain", "x" * 2000)),
        ("nack", _set("code", 0)),
        ("nack", _set("code", 99)),
        ("nack", _set("detail", "x" * 2000)),
        ("law", _set("kind", 2)),
        ("law", _set("ids", struct.pack("<3I", 1, 1, 3))),
        ("law", _set("probabilities", struct.pack("<3f", 0.5, 0.75, 1.0))),
        ("law", _set("probabilities", struct.pack("<3f", -0.5, 1.5, 1.0))),
        ("law", _set("probabilities", struct.pack("<3f", float("nan"), 0.75, 1.0))),
        ("law", _set("probabilities", struct.pack("<3f", 0.25, 0.75, float("inf")))),
        ("law", _set("probabilities", struct.pack("<2f", 0.25, 0.75))),
        ("law", _set("probabilities", bytes(11))),
        ("law", _set("ids", struct.pack("<2I", 1, 2))),
        ("law", _set("row_size", struct.pack("<3I", 3, 0, 0))),
        ("law", _set("row_size", struct.pack("<2I", 2**32 - 1, 2**32 - 1))),
        ("law", _set("row_size", struct.pack("<65I", *[0] * 65))),
    ],
)
def test_fields_out_of_range_are_invalid_to_target(part: str, change: Change) -> None:
    message = next(m for m in TO_TARGET if pb.ToTarget.FromString(encode(m)).WhichOneof("message") == part)
    frame = pb.ToTarget.FromString(encode(message))
    change(getattr(frame, part))
    with pytest.raises(InvalidFrame):
        decode_to_target(frame.SerializeToString(), LIMITS)


def test_an_open_that_does_not_name_saguaro_is_without_it() -> None:
    frame = pb.ToDraft.FromString(encode(TO_DRAFT[1]))
    frame.open.ClearField("saguaro_c")
    message = decode_to_draft(frame.SerializeToString(), LIMITS)
    assert isinstance(message, Open)
    assert message.saguaro_c == 1.0


def test_a_dense_law_has_no_ids_and_no_more_entries_than_the_vocabulary() -> None:
    law = pack_law(SESSION, 1, 2, ProposalKind.DENSE, ((0.25, 0.25, 0.5),))
    assert decode_to_target(encode(law), Limits(vocabulary=3)) == law
    for wrong in (encode(law), encode(replace(law, ids=bytes(12)))):
        with pytest.raises(InvalidFrame):
            decode_to_target(wrong, Limits(vocabulary=2))


@pytest.mark.parametrize(
    "message",
    [
        CommitBatch((commit_row(tokens=(10,)),)),
        CommitBatch((commit_row(proposal=(10,)),)),
        replace(TO_DRAFT[1], tokens=(10,)),  # type: ignore[type-var]
        replace(TO_DRAFT[1], stop_ids=(10,)),  # type: ignore[type-var]
        BlockBatch((Block(1, 1, 1, 1, 1, (Branch(0, 10, (), 0.0),)),)),
        BlockBatch((Block(1, 1, 1, 1, 1, (Branch(0, 1, (10,), 0.0),)),)),
        pack_law(1, 1, 1, ProposalKind.SPARSE, ((1.0,),), ((10,),)),
    ],
    ids=str,
)
def test_ids_at_or_beyond_the_vocabulary_are_invalid(message: Message) -> None:
    decode = decode_to_draft if type(message) in {type(m) for m in TO_DRAFT} else decode_to_target
    assert decode(encode(message), Limits(vocabulary=11)) == message
    with pytest.raises(InvalidFrame) as caught:
        decode(encode(message), Limits(vocabulary=10))
    assert "10" in caught.value.message  # the bound


@pytest.mark.parametrize("decode", [decode_to_draft, decode_to_target])
def test_a_frame_without_a_known_message_is_invalid(decode: Callable[[bytes, Limits], Message]) -> None:
    unknown_field = b"\xfa\x01\x02\x08\x01"  # field 31, length-delimited
    for frame in (b"", unknown_field):
        with pytest.raises(InvalidFrame):
            decode(frame, LIMITS)


def test_a_frame_beyond_the_size_cap_is_invalid() -> None:
    frame = encode(Close(tuple(range(100))))
    with pytest.raises(InvalidFrame):
        decode_to_draft(frame, Limits(frame_bytes=len(frame) - 1))


@pytest.mark.parametrize("change", [{"vocabulary": 0}, {"k_max": 256}, {"branches": 1 << 16}, {"frame_bytes": 0}])
def test_limits_are_checked(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Limits(**change)


@unhurried
@given(st.binary(max_size=200))
def test_random_bytes_give_a_message_or_an_invalid_frame(data: bytes) -> None:
    for decode in (decode_to_draft, decode_to_target):
        try:
            decode(data, LIMITS)
        except InvalidFrame:
            continue


@settings(deadline=None, max_examples=300)
@given(st.one_of(some.to_draft, some.to_target), st.integers(0, 2**32))
def test_mutated_frames_give_a_message_or_an_invalid_frame(message: Message, seed: int) -> None:
    frame = corrupt_frame(encode(message), random.Random(seed))
    for decode in (decode_to_draft, decode_to_target):
        try:
            again = decode(frame, Limits(vocabulary=500))
        except InvalidFrame:
            continue
        assert decode(encode(again), Limits(vocabulary=500)) == again


def test_each_side_sends_its_own_messages_only() -> None:
    target, draft = FrameCodec(Side.TARGET, LIMITS), FrameCodec(Side.DRAFT, LIMITS)
    for message in TO_DRAFT:
        assert draft.decode(target.encode(message)) == message
    with pytest.raises(InvalidFrame):
        target.encode(welcome())
    with pytest.raises(InvalidFrame):
        draft.encode(Ping(1))


def test_what_a_side_says_of_its_vocabulary_binds_what_it_accepts() -> None:
    target, draft = FrameCodec(Side.TARGET, LIMITS), FrameCodec(Side.DRAFT, LIMITS)
    commit = encode(CommitBatch((commit_row(tokens=(999,), next=Next.NONE, proposal=(), origin=None),)))
    draft.decode(commit)
    draft.encode(welcome(vocabulary=999))
    with pytest.raises(InvalidFrame):
        draft.decode(commit)
    draft.encode(welcome(vocabulary=1000))
    draft.decode(commit)
    target.encode(hello(vocabulary=10))
    with pytest.raises(InvalidFrame):
        target.decode(encode(BlockBatch((block(),))))


def test_a_message_beyond_the_frame_size_is_refused_by_its_sender() -> None:
    codec = FrameCodec(Side.TARGET, Limits(frame_bytes=200))
    with pytest.raises(InvalidFrame, match="200"):
        codec.encode(Close(tuple(range(100))))
