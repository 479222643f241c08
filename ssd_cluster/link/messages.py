"""The messages of the draft link as plain data (protocol.md). The codec turns them into protobuf frames.

Lengths are counted in tokens of prompt + output. ``base_len`` includes the last emitted token, whose key and value do
not exist yet. Times named ``*_us`` are microseconds from the receipt of the frame (no clock is shared).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ssd_cluster.types import BlockOrigin, ProposalKind

PROTOCOL_VERSION = 1


class Next(StrEnum):
    """What the target verifies after a commit: nothing, not known yet (a just-in-time chain is wanted), or tokens."""

    NONE = "none"
    WAIT = "wait"
    TOKENS = "tokens"


class NackCode(StrEnum):
    UNKNOWN = "unknown"
    CONFLICT = "conflict"
    GAP = "gap"
    EVICTED = "evicted"
    BUSY = "busy"
    TOO_LONG = "too_long"
    MISMATCH = "mismatch"
    BAD_TOKEN = "bad_token"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Measured cost of one draft forward: ``base_us + per_row_us * rows``."""

    base_us: float
    per_row_us: float


@dataclass(frozen=True, slots=True)
class Hello:
    target_id: str
    incarnation: int
    tokenizer_hash: str
    vocabulary: int
    kinds: tuple[ProposalKind, ...] = (ProposalKind.COUPLED, ProposalKind.DELTA)
    protocol: int = PROTOCOL_VERSION
    trust_domain: str = ""


@dataclass(frozen=True, slots=True)
class Welcome:
    draft_id: str
    incarnation: int
    model_hash: str
    tokenizer_hash: str
    vocabulary: int
    k_max: int
    max_context: int
    row_credit: int
    session_credit: int
    step_time: StepTimeModel
    session_ttl_s: float
    protocol: int = PROTOCOL_VERSION
    trust_domain: str = ""


@dataclass(frozen=True, slots=True)
class Open:
    """Start (or restart, with a higher epoch) a session. The first block guesses the first output token (k = 0).

    ``top_m``: entries of each row of a sparse law. ``saguaro_c``, ``saguaro_f``: SAGUARO sampling; 1 switches it off.
    """

    session: int
    epoch: int
    tokens: tuple[int, ...]
    kind: ProposalKind
    temperature: float
    seed: int
    top_k: int
    top_p: float
    stop_ids: tuple[int, ...]
    max_len: int
    k: int
    rows: int
    priority: int = 0
    lengths: tuple[int, ...] = ()
    top_m: int = 0
    saguaro_c: float = 1.0
    saguaro_f: int = 0


@dataclass(frozen=True, slots=True)
class CommitRow:
    """Progress of one session: tokens appended from ``from_len`` on, and what will be verified next.

    ``proposal`` and ``proposal_kind`` are set when ``next`` is TOKENS; ``origin`` too where the tokens came from a
    block, and names the law of a ratio kind that is to follow. ``k`` and ``rows`` are ceilings for the block that
    follows (rows = 0: push nothing). ``due_us``: time from the receipt of this row until the block must leave to
    arrive before the outcome of this round is expected (its verification less a round trip). ``counter`` grows
    with every row of the session; of two rows for one base_len the higher counter wins. ``finish``: the session ends
    here. ``shard`` of ``shards``: several drafts share the kept lengths of this round, and this one guesses
    outcomes of those that ``shard_of`` gives it.
    """

    session: int
    epoch: int
    from_len: int
    tokens: tuple[int, ...]
    next: Next
    k: int
    rows: int
    counter: int
    due_us: int = 0
    deadline_us: int = 0
    proposal: tuple[int, ...] = ()
    proposal_kind: ProposalKind = ProposalKind.NONE
    origin: BlockOrigin | None = None
    finish: bool = False
    shard: int = 0
    shards: int = 1

    @property
    def base_len(self) -> int:
        """Committed length after this row."""
        return self.from_len + len(self.tokens)


@dataclass(frozen=True, slots=True)
class CommitBatch:
    rows: tuple[CommitRow, ...]


@dataclass(frozen=True, slots=True)
class Pull:
    session: int
    epoch: int
    base_len: int
    k: int
    deadline_us: int


@dataclass(frozen=True, slots=True)
class Close:
    sessions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attach:
    """Rendezvous of a tensor channel, from the target's end: one entry of the store that both ends share.

    ``channel``: number of the attempt on this stream, from 1; a newer one replaces the older. ``backend``: of the
    target. ``capacity``: most entries of a transfer (``link.tensor.rows``). ``value``: what the backend wrote, opaque
    to us.
    """

    channel: int
    backend: str
    capacity: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Ping:
    token: int


@dataclass(frozen=True, slots=True)
class Pong:
    token: int


@dataclass(frozen=True, slots=True)
class Opened:
    session: int
    epoch: int
    have_len: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A guessed outcome (k, t_star) and the tokens drafted behind it; ``score``: log-probability of the outcome."""

    k: int
    t_star: int
    tokens: tuple[int, ...]
    score: float
    jit: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """Branches for one round of one session; those of one k are listed best first."""

    session: int
    epoch: int
    block_seq: int
    base_len: int
    fingerprint: int
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class BlockBatch:
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Law:
    """The laws that the tokens of one proposal were really drawn from, row after row (ratio kinds).

    ``row_size``: entries of each row. ``probabilities``: float32, ``ids``: uint32, both little-endian and ragged by
    ``row_size``; a dense law has no ids, its entry v is that of id v. ``link.laws`` packs, unpacks and checks them.
    ``channel`` other than 0: the entries are not here, but follow on that tensor channel as number ``transfer``.
    """

    session: int
    epoch: int
    fingerprint: int
    kind: ProposalKind
    row_size: tuple[int, ...]
    ids: bytes
    probabilities: bytes
    channel: int = 0
    transfer: int = 0


@dataclass(frozen=True, slots=True)
class CompleteLaw(Law):
    """Local event, never on the wire: an announced law is complete; ``content``: what its receiver made of it."""

    content: object = None

    @classmethod
    def of(cls, law: Law, content: object) -> CompleteLaw:
        """The law that ``law`` has announced."""
        values = (law.session, law.epoch, law.fingerprint, law.kind, law.row_size, law.ids, law.probabilities)
        return cls(*values, law.channel, law.transfer, content)


@dataclass(frozen=True, slots=True)
class Attached:
    """The draft's entries of a rendezvous. ``refusal``: there will be no tensor channel on this stream, and why."""

    channel: int
    key: str = ""
    value: bytes = b""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Nack:
    session: int
    epoch: int
    code: NackCode
    have_len: int = 0
    retry_after_ms: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    row_credit: int
    session_credit: int
    queue_us: int = 0
    step_us: int = 0
    draining: bool = False


ToDraft = Hello | Open | CommitBatch | Pull | Close | Attach | Ping
ToTarget = Welcome | Opened | BlockBatch | Law | Attached | Nack | Load | Pong
Message = ToDraft | ToTarget


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """Local event, never on the wire: the stream has ended; ``reason`` is for the log."""

    reason: str = field(default="closed")
