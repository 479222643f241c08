"""A vocabulary of 152k and eight tokens: what the default rule sends is small, dense laws need a larger frame on both
sides, and gRPC's own limits are those of the configuration in both directions.
"""

from __future__ import annotations

import pytest
from support.links import hello

from ssd_cluster.config import LinkSettings
from ssd_cluster.errors import InvalidFrame
from ssd_cluster.link.codec import encode
from ssd_cluster.link.grpc_backend import Listener, connect
from ssd_cluster.link.laws import pack_law
from ssd_cluster.link.loop import LinkLoop
from ssd_cluster.link.messages import Block, BlockBatch, Branch, CommitBatch, CommitRow, Message, Next, Open
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.types import ProposalKind

PATIENCE_S = 60.0
V = 151_936
K = 8
ROW = (2.0**-17,) * 2**17 + (0.0,) * (V - 2**17)
DENSE = pack_law(1, 1, 5, ProposalKind.DENSE, (ROW,) * K)
LARGE = LinkSettings(frame_bytes=8 * 1024 * 1024)


def arrived(inbox: Inbox) -> tuple[Stream, Message]:
    received = inbox.receive(PATIENCE_S)
    assert received is not None, "nothing arrived"
    return received  # type: ignore[return-value]


def test_frames_beyond_grpcs_own_default_cross_in_both_directions(
    loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    listener = Listener("127.0.0.1", 0, draft_inbox, LARGE, loop)
    target = connect(listener.endpoint, target_inbox, LARGE, loop)
    target.send(hello(vocabulary=V))
    draft, _ = arrived(draft_inbox)
    assert len(encode(DENSE)) > 4 * 1024 * 1024
    draft.send(DENSE)
    assert arrived(target_inbox) == (target, DENSE)
    long = Open(1, 1, (V - 1,) * (3 << 19), ProposalKind.COUPLED, 0.0, 0, 0, 1.0, (), 1 << 21, K, 16)
    assert len(encode(long)) > 4 * 1024 * 1024
    target.send(long)
    assert arrived(draft_inbox) == (draft, long)
    listener.close()


def test_a_dense_law_beyond_the_frame_is_refused_at_its_sender_and_the_stream_lives(
    listener: Listener, loop: LinkLoop, target_inbox: Inbox, draft_inbox: Inbox
) -> None:
    target = connect(listener.endpoint, target_inbox, LinkSettings(), loop)
    target.send(hello(vocabulary=V))
    draft, _ = arrived(draft_inbox)
    with pytest.raises(InvalidFrame, match=str(LinkSettings().frame_bytes)):
        draft.send(DENSE)
    assert not draft.closed
    sessions = range(64)
    tokens = tuple(V - 1 - i for i in range(K))
    branches = tuple(Branch(i % (K + 1), V - 1 - i, tokens, -1.0) for i in range(24))
    blocks = BlockBatch(tuple(Block(i, 1, 2, 3, 4, branches) for i in sessions))
    draft.send(blocks)
    assert arrived(target_inbox) == (target, blocks)
    rows = tuple(
        CommitRow(i, 1, 3, tokens, Next.TOKENS, K, 16, 1, proposal=tokens, proposal_kind=ProposalKind.COUPLED)
        for i in sessions
    )
    target.send(CommitBatch(rows))
    assert arrived(draft_inbox) == (draft, CommitBatch(rows))
    assert target.bytes_received < 128 * 1024, "64 sequences at V = 152k"
