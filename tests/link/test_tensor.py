"""The tensor channel with both ends in one process: what arrives, what is refused, what is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from support.law_links import (
    CPU,
    PATIENCE_S,
    DraftInbox,
    Ends,
    await_that,
    dense_law,
    entries,
    link_settings,
    listeners,
    nothing_beyond,
    process_state,
    sparse_law,
)

from ssd_cluster.config import DraftSettings, LinkSettings, TargetSettings, TensorBackend
from ssd_cluster.draft.post import LawPost
from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link.codec import FrameCodec, Side
from ssd_cluster.link.inprocess import pair
from ssd_cluster.link.laws import id_rows, probability_rows
from ssd_cluster.link.limits import Limits
from ssd_cluster.link.messages import Attached, CompleteLaw, Law, Load
from ssd_cluster.link.stream import Inbox
from ssd_cluster.link.tensor.pairs import available
from ssd_cluster.link.tensor.rows import SEAL, LawRows, LawShape
from ssd_cluster.types import ProposalKind

DENSE, SPARSE = ProposalKind.DENSE, ProposalKind.SPARSE


@pytest.fixture
def dense() -> Iterator[Ends]:
    made = Ends(DENSE, 4, 1000, draft=link_settings())
    yield made
    made.close()


def attached(ends: Ends) -> Ends:
    ends.inlet.attach(ends.target)
    ends.up()
    return ends


def test_dense_laws_of_a_large_vocabulary_arrive_bit_for_bit() -> None:
    ends = attached(Ends(DENSE, 8, 151_936, draft=link_settings()))
    for number, rows in enumerate((8, 1, 5)):
        law = dense_law(number, rows, 151_936)
        assert ends.post.send(ends.draft, law)
        message = ends.next_law()
        assert isinstance(message, CompleteLaw)
        assert (message.session, message.epoch, message.fingerprint, message.kind) == (1, 1, number, DENSE)
        ids, probabilities = entries(message)
        assert ids is None
        assert torch.equal(probabilities, torch.stack(law.probabilities))
    assert ends.target.bytes_received < 4096, "rows travelled in frames"
    ends.close()


def test_sparse_laws_arrive_with_their_ids() -> None:
    ends = attached(Ends(SPARSE, 7, 64, draft=link_settings()))
    law = sparse_law(3, 7, 64, 49_152)
    assert ends.post.send(ends.draft, law)
    ids, probabilities = entries(ends.next_law())
    assert ids is not None
    assert torch.equal(ids.long(), torch.stack(law.ids))
    assert torch.equal(probabilities, torch.stack(law.probabilities))
    ends.close()


def test_a_reduced_heads_rows_are_spread_over_the_vocabulary_on_both_ways(dense: Ends) -> None:
    attached(dense)
    names = torch.tensor([3, 5, 900])
    law = LawRows(1, 1, 7, (torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.0, 0.0, 1.0])), 1000, names=names)
    wanted = torch.zeros(2, 1000).index_copy_(1, names, torch.stack(law.probabilities))
    assert dense.post.send(dense.draft, law)
    assert torch.equal(entries(dense.next_law())[1], wanted)
    assert [row.tolist() for row in probability_rows(law.packed())] == wanted.tolist()


def test_packed_and_sent_laws_are_the_same() -> None:
    law = sparse_law(5, 3, 16, 1000)
    packed = law.packed()
    buffer = torch.empty(law.entries, dtype=torch.int32)
    law.write(buffer, 0)
    assert buffer[: 2 * 3 * 16].numpy().tobytes() == packed.ids + packed.probabilities
    assert packed.row_size == law.announcement(1, 0).row_size
    assert [row.tolist() for row in id_rows(packed)] == [row.tolist() for row in law.ids]


def test_laws_come_in_frames_until_the_channel_is_up(dense: Ends) -> None:
    law = dense_law(1, 3, 1000)
    assert dense.post.send(dense.draft, law)
    message = dense.next_law()
    assert type(message) is Law
    assert message == law.packed()
    attached(dense)
    assert dense.post.send(dense.draft, law)
    assert isinstance(dense.next_law(), CompleteLaw)


def test_a_law_beyond_the_targets_capacity_comes_in_a_frame(dense: Ends) -> None:
    """gloo would end the target's process if more came than it has room for."""
    attached(dense)
    assert dense.post.send(dense.draft, dense_law(1, 5, 1000))
    assert type(dense.next_law()) is Law


def test_a_law_that_fits_no_frame_is_dropped_without_a_channel(caplog: pytest.LogCaptureFixture) -> None:
    ends = Ends(DENSE, 8, 151_936, draft=link_settings())
    assert not ends.post.send(ends.draft, dense_law(1, 8, 151_936))
    assert not ends.post.send(ends.draft, dense_law(2, 8, 151_936))
    assert not ends.draft.closed
    assert ends.inbox.drain() == []
    assert caplog.text.count("law_dropped") == 1
    ends.close()


def test_a_draft_that_sends_laws_over_grpc_says_so_and_is_not_asked_again() -> None:
    ends = Ends(DENSE, 4, 1000, draft=LinkSettings())
    ends.inlet.attach(ends.target)
    await_that(ends.inlet.failed.is_set, "the refusal")
    (receiver,) = ends.inlet._receivers.values()
    assert receiver.join(PATIENCE_S)
    assert len(ends.inlet.failures) == 1
    assert "the draft sends laws over gRPC: set link.laws" in ends.inlet.failures[0]
    assert ends.post.send(ends.draft, dense_law(1, 3, 1000))
    assert type(ends.next_law()) is Law
    ends.close()


def test_a_target_outside_the_trust_domain_gets_no_channel(dense: Ends) -> None:
    dense.draft_inbox.post, post = None, dense.post
    dense.inlet.attach(dense.target)
    await_that(lambda: dense.draft_inbox.attached, "the rendezvous")
    post.attach(dense.draft, dense.draft_inbox.attached[0], trusted=False)
    await_that(dense.inlet.failed.is_set, "the refusal")
    assert "sends no laws to this target" in dense.inlet.failures[0]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"row_size": (1000,) * 5}, "5 rows"),
        ({"row_size": ()}, "0 rows"),
        ({"row_size": (1000, 999)}, "several lengths"),
        ({"row_size": (0, 0)}, "empty"),
        ({"kind": SPARSE}, "kind sparse"),
    ],
)
def test_announced_shapes_that_no_proposal_has_end_the_channel(dense: Ends, changes: dict[str, Any], says: str) -> None:
    """Nothing is received into a buffer that does not fit; a new channel takes over."""
    attached(dense)
    law = replace(dense_law(1, 3, 1000).announcement(1, 0), **changes)
    dense.inlet.put(dense.target, law)
    await_that(dense.inlet.failed.is_set, "the refusal")
    assert says in dense.inlet.failures[0]
    await_that(lambda: any(s.channel > 1 and s._ready for s in dense.post._senders.values()), "a second channel")
    assert dense.post.send(dense.draft, dense_law(2, 3, 1000))
    assert entries(dense.next_law())[1].shape == (3, 1000)


@pytest.mark.parametrize("announced", [2, 4])
def test_a_transfer_of_another_size_than_announced_never_counts(dense: Ends, announced: int) -> None:
    """gloo itself calls a short transfer a success: what an earlier law left in the buffer must not pass for a row."""
    attached(dense)
    assert dense.post.send(dense.draft, dense_law(0, 4, 1000))
    dense.next_law()
    (sender,) = dense.post._senders.values()
    sender._send = lambda law: dense.draft.send(replace(law, row_size=(1000,) * announced))  # type: ignore[arg-type]
    assert dense.post.send(dense.draft, dense_law(1, 3, 1000))
    await_that(dense.inlet.failed.is_set, "the mismatch")
    assert dense.inbox.drain() == []


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"\x00" * 170,
        b"\xff" * 170,
        bytes(range(170)),
        b"\x02" + b"\x00" * 7 + b"\xfe" * 162,
        b"\x00" * 8 + b"\x88" + b"\x00" * 159,
    ],
)
def test_garbage_in_a_rendezvous_is_no_more_than_a_failure(value: bytes) -> None:
    ends = Ends(DENSE, 4, 1000, draft=None)
    ends.inlet.attach(ends.target)
    await_that(lambda: ends.draft_inbox.attached, "the rendezvous")
    ends.draft.send(Attached(1, "0/1", value))
    await_that(ends.inlet.failed.is_set, "the failure")
    ends.inlet.put(ends.target, Load(1, 1))
    assert ends.inbox.receive(0) == (ends.target, Load(1, 1))
    ends.close()


def test_a_draft_that_never_answers_leaves_the_target_alone() -> None:
    ends = Ends(DENSE, 4, 1000, draft=None)
    ends.inlet.attach(ends.target)
    await_that(lambda: {one.channel for one in ends.draft_inbox.attached} >= {1, 2}, "a second attempt")
    assert "did not answer" in ends.inlet.failures[0]
    ends.close()


def test_the_end_of_the_stream_ends_the_channel_on_both_sides(dense: Ends) -> None:
    attached(dense)
    (receiver,), (sender,) = dense.inlet._receivers.values(), dense.post._senders.values()
    dense.draft.close()
    dense.post.forget(dense.draft)
    assert receiver.join(PATIENCE_S)
    assert sender.join(PATIENCE_S)
    assert not dense.inlet.failures


def test_closing_leaves_no_thread_socket_or_port() -> None:
    before, others = process_state(), listeners()
    ends = attached(Ends(DENSE, 4, 1000, draft=link_settings()))
    assert ends.post.send(ends.draft, dense_law(1, 3, 1000))
    ends.next_law()
    ours = listeners() - others
    assert {address for address, _ in ours} == {"127.0.0.1"}
    ends.close()
    await_that(lambda: nothing_beyond(before), "native threads and sockets gone")
    assert not ours & listeners()


def test_closed_in_the_middle_of_a_rendezvous() -> None:
    before = process_state()
    ends = Ends(DENSE, 4, 1000, draft=None)
    ends.inlet.attach(ends.target)
    await_that(lambda: ends.draft_inbox.attached, "the rendezvous")
    ends.close()
    await_that(lambda: nothing_beyond(before), "native threads and sockets gone")


def test_threads_of_a_draft_do_not_pile_up() -> None:
    """A target that asks for channel after channel gets the next one when the last one's thread has ended."""
    inbox = DraftInbox()
    target, draft = pair(Inbox(), inbox)
    post = LawPost(link_settings(timeout_s=30.0), CPU)
    ends = Ends(DENSE, 4, 1000, draft=None)
    ends.inlet.attach(ends.target)
    await_that(lambda: ends.draft_inbox.attached, "a rendezvous")
    first = ends.draft_inbox.attached[0]
    for number in range(1, 20):
        post.attach(draft, replace(first, channel=number, key="0/9"), trusted=True)
        assert len(post._leaving) <= 1
    assert post.close(PATIENCE_S)
    ends.close()
    target.close()


def test_frames_of_announcements_are_checked() -> None:
    codec = FrameCodec(Side.TARGET, Limits(vocabulary=1000))
    sender = FrameCodec(Side.DRAFT, Limits())
    good = dense_law(1, 3, 1000).announcement(2, 9)
    assert codec.decode(sender.encode(good)) == good
    for wrong in (
        replace(good, row_size=(1001,)),
        replace(good, row_size=(1000,) * 65),
        replace(good, probabilities=b"1234"),
        replace(good, ids=b"1234"),
        replace(good, kind=ProposalKind.COUPLED),
    ):
        with pytest.raises(InvalidFrame):
            codec.decode(sender.encode(wrong))
    with pytest.raises(InvalidFrame):
        codec.decode(sender.encode(Attached(1, "k", b"x" * (64 * 1024 + 1))))


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        ({"address": "10.0.0.1"}, "trusted_network: true"),
        ({"backend": "nccl"}, "trusted_network: true"),
        ({"address": "0.0.0.0", "trusted_network": True}, "one interface"),
        ({"address": "draft.example"}, "one interface"),
        ({"backend": "mpi"}, "gloo"),
    ],
)
def test_an_open_channel_must_be_asked_for(tensor: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        LinkSettings.model_validate({"laws": "tensor", "tensor": tensor})


def test_a_trusted_network_may_be_said() -> None:
    link = link_settings(address="10.0.0.1", trusted_network=True)
    assert LinkSettings.model_validate_json(link.model_dump_json()) == link


def test_settings_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="laws travel over grpc"):
        LinkSettings.model_validate({"tensor": {"timeout_s": 1.0}})
    with pytest.raises(ValidationError, match="carries draft laws"):
        TargetSettings.model_validate({"model": {"path": "x"}, "link": {"laws": "tensor"}})
    DraftSettings.model_validate({"model": {"path": "x"}, "link": {"laws": "tensor"}})


def test_nccl_is_refused_where_it_cannot_run() -> None:
    assert available(TensorBackend.GLOO, CPU) is None
    assert "NCCL" in (available(TensorBackend.NCCL, CPU) or "")


def test_the_largest_shape_sizes_the_buffer() -> None:
    assert LawShape(DENSE, 8, 1000).entries == 8000 + SEAL
    assert LawShape(SPARSE, 8, 64).entries == 2 * 8 * 64 + SEAL
