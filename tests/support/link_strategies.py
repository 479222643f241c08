"""Hypothesis strategies for every message of the link, within the default limits."""

from __future__ import annotations

from hypothesis import strategies as st

from ssd_cluster.link import messages as msg
from ssd_cluster.link.laws import pack_law
from ssd_cluster.types import BlockOrigin, ProposalKind

u8 = st.integers(0, 2**8 - 1)
u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
depth = st.integers(0, 64)
text = st.text(max_size=20)
amount = st.floats(0, 1e12)
score = st.floats(width=32, allow_nan=False)
kinds = st.sampled_from(ProposalKind)


def column(values: st.SearchStrategy[int], most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(values, max_size=most).map(tuple)


def rows_of(row: st.SearchStrategy[object], most: int = 4) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(row, max_size=most).map(tuple)


@st.composite
def commit_rows(draw: st.DrawFn) -> msg.CommitRow:
    verifies = draw(st.sampled_from(msg.Next))
    named = verifies is msg.Next.TOKENS
    proposal = draw(column(u32, 64)) if named else ()
    shards = draw(st.integers(1, 255))
    known = [kind for kind in ProposalKind if not proposal or kind is not ProposalKind.NONE]
    return msg.CommitRow(
        session=draw(u64),
        epoch=draw(u32),
        from_len=draw(st.integers(0, 2**32 - 100)),
        tokens=draw(column(u32, 20)),
        next=verifies,
        k=draw(u8),
        rows=draw(u16),
        counter=draw(u32),
        due_us=draw(u32),
        deadline_us=draw(u32),
        proposal=proposal,
        proposal_kind=draw(st.sampled_from(known)),
        origin=draw(st.none() | st.builds(BlockOrigin, u32, u16, u8)) if named else None,
        finish=draw(st.booleans()),
        shard=draw(st.integers(0, shards - 1)),
        shards=shards,
    )


@st.composite
def laws(draw: st.DrawFn) -> msg.Law:
    sizes = draw(st.lists(st.integers(1, 8), max_size=4))
    ids = tuple(tuple(draw(st.lists(u32, min_size=n, max_size=n, unique=True))) for n in sizes)
    # powers of two: exact in float32, and they sum to one
    halves = tuple((*(2.0**-i for i in range(1, n)), 2.0 ** (1 - n)) for n in sizes)
    kind = draw(st.sampled_from((ProposalKind.SPARSE, ProposalKind.DENSE)))
    return pack_law(draw(u64), draw(u32), draw(u32), kind, halves, ids if kind is ProposalKind.SPARSE else ())


announced_laws = st.builds(
    msg.Law,
    session=u64,
    epoch=u32,
    fingerprint=u32,
    kind=st.sampled_from((ProposalKind.SPARSE, ProposalKind.DENSE)),
    row_size=column(u32, 64),
    ids=st.just(b""),
    probabilities=st.just(b""),
    channel=st.integers(1, 2**32 - 1),
    transfer=u32,
)
branches = st.builds(msg.Branch, depth, u32, column(u32, 64), score, st.booleans())
blocks = st.builds(msg.Block, u64, u32, u32, u32, u32, rows_of(branches, 6))

to_draft: st.SearchStrategy[msg.ToDraft] = st.one_of(
    st.builds(msg.Hello, text, u64, text, st.integers(1, 2**32 - 1), column(kinds, 5), u32, text),
    st.builds(
        msg.Open,
        session=u64,
        epoch=u32,
        tokens=st.lists(u32, min_size=1, max_size=40).map(tuple),
        kind=kinds,
        temperature=st.floats(0, 100),
        seed=u64,
        top_k=u32,
        top_p=st.floats(0, 1, exclude_min=True),
        stop_ids=column(u32, 5),
        max_len=u32,
        k=u8,
        rows=u16,
        priority=st.integers(-(2**31), 2**31 - 1),
        lengths=column(depth, 8),
        top_m=u16,
        saguaro_c=st.floats(0, 1),
        saguaro_f=u16,
    ),
    st.builds(msg.CommitBatch, rows_of(commit_rows())),
    st.builds(msg.Pull, u64, u32, u32, u8, u32),
    st.builds(msg.Close, column(u64, 10)),
    st.builds(msg.Attach, st.integers(1, 2**32 - 1), text, u32, text, st.binary(max_size=64)),
    st.builds(msg.Ping, u64),
)
to_target: st.SearchStrategy[msg.ToTarget] = st.one_of(
    st.builds(
        msg.Welcome,
        draft_id=text,
        incarnation=u64,
        model_hash=text,
        tokenizer_hash=text,
        vocabulary=st.integers(1, 2**32 - 1),
        k_max=u8,
        max_context=u32,
        row_credit=u32,
        session_credit=u32,
        step_time=st.builds(msg.StepTimeModel, amount, amount),
        session_ttl_s=st.floats(0, 1e6, exclude_min=True),
        protocol=u32,
        trust_domain=text,
    ),
    st.builds(msg.Opened, u64, u32, u32),
    st.builds(msg.BlockBatch, rows_of(blocks)),
    laws(),
    announced_laws,
    st.builds(msg.Attached, u32, text, st.binary(max_size=64), text),
    st.builds(msg.Nack, u64, u32, st.sampled_from(msg.NackCode), u32, u32, text),
    st.builds(msg.Load, u32, u32, u32, u32, st.booleans()),
    st.builds(msg.Pong, u64),
)
