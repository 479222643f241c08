"""A draft that speaks the link protocol in this process and follows a script instead of a model.

It answers inside ``send``, on the caller's thread, so a test that steps the target's engine is deterministic. It knows
what the target will say from a recorded run (``Truth``), and how well it uses that is the script: perfect, half right,
garbage, stale, late, twice, out of order, silent. It also checks what the target sends: ``violations`` must stay empty.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ssd_cluster.errors import LinkClosed
from ssd_cluster.link.messages import (
    Block,
    BlockBatch,
    Branch,
    Close,
    CommitBatch,
    CommitRow,
    Hello,
    Load,
    Message,
    Nack,
    NackCode,
    Next,
    Open,
    Opened,
    Pull,
    StepTimeModel,
    StreamClosed,
    ToTarget,
    Welcome,
)
from ssd_cluster.link.stream import Inbox, Stream
from ssd_cluster.types import fingerprint


class Truth:
    """What the target says: token lists (prompt + output) by seed and temperature, from a recorded run."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, float], list[tuple[int, ...]]] = {}

    def record(self, seed: int, temperature: float, tokens: Sequence[int]) -> None:
        self._texts.setdefault((seed, temperature), []).append(tuple(tokens))

    def after(self, opened: Open, tokens: Sequence[int], n: int) -> tuple[int, ...]:
        """At most ``n`` tokens that the target will say after ``tokens``; fewer at the end, none if unknown."""
        known = tuple(tokens)
        for text in self._texts.get((opened.seed, opened.temperature), ()):
            if text[: len(known)] == known:
                return text[len(known) : len(known) + n]
        return ()


@dataclass
class ScriptedSession:
    """A session as the draft sees it."""

    opened: Open
    tokens: list[int]
    counter: int = 0
    blocks: int = 0
    row: CommitRow | None = None


class Script:
    """Says the truth, at once. Subclasses override what they do worse."""

    k_max = 8

    def __init__(self, truth: Truth, seed: int = 0) -> None:
        self.truth = truth
        self.rng = random.Random(seed)

    def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Branch]:
        """Branches of the block on ``proposal``: the real outcome and, if ``rows`` allow, a wrong one."""
        following = self.truth.after(session.opened, session.tokens, len(proposal) + 1 + k)
        kept = 0
        while kept < len(proposal) and kept < len(following) and proposal[kept] == following[kept]:
            kept += 1
        if kept >= len(following):
            return []
        return [Branch(kept, following[kept], following[kept + 1 : kept + 1 + k], -0.1)]

    def chain(self, session: ScriptedSession, k: int) -> list[Branch]:
        """The just-in-time chain of ``k`` tokens."""
        following = self.truth.after(session.opened, session.tokens, k)
        return [Branch(0, following[0], following[1:], 0.0, jit=True)] if following else []

    def deliver(self, message: ToTarget) -> Iterable[ToTarget]:
        """What is really sent when ``message`` is due."""
        yield message

    def on_message(self) -> Iterable[ToTarget]:
        """Sent as it is before the answer to any frame of the target."""
        return ()


class HalfRight(Script):
    """Every third block misses the outcome, every third drafts wrong tokens behind it."""

    def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Branch]:
        found = super().branches(session, proposal, k, rows)
        return [self._spoil(branch) for branch in found if self.rng.random() < 0.67]

    def chain(self, session: ScriptedSession, k: int) -> list[Branch]:
        return [self._spoil(branch) for branch in super().chain(session, k)]

    def _spoil(self, branch: Branch) -> Branch:
        tokens = list(branch.tokens)
        if tokens and self.rng.random() < 0.5:
            at = self.rng.randrange(len(tokens))
            tokens[at] = (tokens[at] + 1) % 300
        return Branch(branch.k, branch.t_star, tuple(tokens), branch.score, branch.jit)


class Garbage(Script):
    """Random tokens, ids outside the vocabulary, impossible lengths, messages about nothing."""

    def branches(self, session: ScriptedSession, proposal: tuple[int, ...], k: int, rows: int) -> list[Branch]:
        pick = self.rng.randrange
        found = [
            Branch(pick(0, len(proposal) + 3), pick(320), tuple(pick(320) for _ in range(k)), -pick(9) * 1.0)
            for _ in range(max(1, rows))
        ]
        if pick(3) == 0:
            found.append(Branch(0, 10**6, (5,), 0.0))
            found.append(Branch(-1, 5, (-7,), 0.0))
        return found

    def chain(self, session: ScriptedSession, k: int) -> list[Branch]:
        pick = self.rng.randrange
        return [Branch(0, pick(320), tuple(pick(320) for _ in range(k + 2)), 0.0, jit=True)]

    def on_message(self) -> Iterable[ToTarget]:
        pick = self.rng.randrange
        yield Nack(pick(2**63), 1, NackCode.CONFLICT)
        yield Opened(pick(2**63), 3, 7)
        yield BlockBatch((Block(pick(2**63), 1, 0, 5, 5, (Branch(0, 1, (2,), 0.0),)),))


class Stale(Script):
    """Every block is built on what was true two rounds ago."""

    def __init__(self, truth: Truth, seed: int = 0) -> None:
        super().__init__(truth, seed)
        self._old: dict[int, list[Block]] = {}

    def deliver(self, message: ToTarget) -> Iterable[ToTarget]:
        if not isinstance(message, BlockBatch):
            yield message
            return
        for block in message.blocks:
            history = self._old.setdefault(block.session, [])
            history.append(block)
            if len(history) > 2:
                yield BlockBatch((history.pop(0),))


class Late(Script):
    """Every block comes after the target's next frame."""

    def __init__(self, truth: Truth, seed: int = 0) -> None:
        super().__init__(truth, seed)
        self._held: list[ToTarget] = []

    def deliver(self, message: ToTarget) -> Iterable[ToTarget]:
        if isinstance(message, BlockBatch):
            self._held.append(message)
        else:
            yield message

    def on_message(self) -> Iterable[ToTarget]:
        held, self._held = self._held, []
        return held


class Duplicate(HalfRight):
    """Every message comes twice."""

    def deliver(self, message: ToTarget) -> Iterable[ToTarget]:
        yield message
        yield message


class Reordered(HalfRight):
    """Two blocks at a time come in the wrong order."""

    def __init__(self, truth: Truth, seed: int = 0) -> None:
        super().__init__(truth, seed)
        self._held: ToTarget | None = None

    def deliver(self, message: ToTarget) -> Iterable[ToTarget]:
        if not isinstance(message, BlockBatch):
            yield message
        elif self._held is None:
            self._held = message
        else:
            yield message
            held, self._held = self._held, None
            yield held


class Dead(Script):
    """Says Welcome and Opened, then nothing."""

    def deliver(self, message: ToTarget) -> Iterable[ToTarget]:
        if isinstance(message, Welcome | Opened):
            yield message


SCRIPTS: dict[str, Callable[[Truth, int], Script]] = {
    "perfect": Script,
    "half_right": HalfRight,
    "garbage": Garbage,
    "stale": Stale,
    "late": Late,
    "duplicate": Duplicate,
    "reordered": Reordered,
    "dead": Dead,
}


@dataclass
class ScriptedDraft:
    """One draft replica. ``connect`` is the connector that a target engine is given.

    Attributes:
        script: how it behaves.
        welcome: overrides of its Welcome.
        answers: Nack codes to give instead of Opened, used up one by one.
        violations: what the target did against the protocol.
        received: every message of the target, in order.
        finished: sessions that the target ended with a finishing commit; never seen again.
        closed: sessions that the target closed; only Open may follow.
    """

    script: Script
    welcome: dict[str, object] = field(default_factory=dict)
    answers: list[Nack] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    sessions: dict[int, ScriptedSession] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)
    connections: int = 0
    reachable: bool = True
    stream: ScriptedStream | None = None

    def connect(self, inbox: Inbox) -> Stream:
        if not self.reachable:
            raise LinkClosed("the scripted draft is down")
        self.connections += 1
        self.sessions.clear()
        self.stream = ScriptedStream(self, inbox)
        return self.stream

    def kill(self) -> None:
        """The process dies: the stream ends, every session is gone."""
        self.sessions.clear()
        if self.stream is not None:
            self.stream.break_off("killed")

    def push(self, message: ToTarget) -> None:
        """Send something on the script's own account."""
        if self.stream is not None:
            self.stream.deliver(message)

    def handle(self, message: Message) -> Iterable[ToTarget]:
        """Answer one message of the target."""
        self.received.append(message)
        if isinstance(message, Hello):
            yield self._welcome(message)
        elif isinstance(message, Open):
            yield from self._open(message)
        elif isinstance(message, CommitBatch):
            for row in message.rows:
                yield from self._commit(row)
        elif isinstance(message, Pull):
            session = self.sessions.get(message.session)
            if session is not None:
                yield from self._block(session, (), self.script.chain(session, message.k))
        elif isinstance(message, Close):
            for session_id in message.sessions:
                self.sessions.pop(session_id, None)
                self.closed.add(session_id)

    def _welcome(self, hello: Hello) -> Welcome:
        fields: dict[str, object] = {
            "draft_id": "scripted",
            "incarnation": self.connections,
            "model_hash": "none",
            "tokenizer_hash": hello.tokenizer_hash,
            "vocabulary": hello.vocabulary,
            "k_max": self.script.k_max,
            "max_context": 512,
            "row_credit": 256,
            "session_credit": 64,
            "step_time": StepTimeModel(100.0, 10.0),
            "session_ttl_s": 10.0,
        }
        return Welcome(**{**fields, **self.welcome})  # type: ignore[arg-type]

    def _open(self, message: Open) -> Iterable[ToTarget]:
        if message.session in self.finished:
            self._blame(f"session {message.session} opened after its end")
        self.closed.discard(message.session)
        if self.answers:
            nack = self.answers.pop(0)
            yield Nack(message.session, message.epoch, nack.code, nack.have_len, nack.retry_after_ms)
            return
        session = ScriptedSession(message, list(message.tokens))
        self.sessions[message.session] = session
        yield Opened(message.session, message.epoch, len(message.tokens))
        if message.rows:
            yield from self._block(session, (), self.script.branches(session, (), message.k, message.rows))

    def _commit(self, row: CommitRow) -> Iterable[ToTarget]:
        session = self.sessions.get(row.session)
        if session is None:
            if row.session in self.finished | self.closed:
                self._blame(f"commit for session {row.session} after its end")
            else:
                yield Nack(row.session, row.epoch, NackCode.UNKNOWN)
            return
        have = len(session.tokens)
        if row.epoch != session.opened.epoch:
            self._blame(f"epoch {row.epoch} instead of {session.opened.epoch}")
        if row.from_len > have:
            yield Nack(row.session, row.epoch, NackCode.GAP, have)
            return
        overlap = session.tokens[row.from_len : row.from_len + len(row.tokens)]
        if list(row.tokens[: len(overlap)]) != overlap:
            self._blame(f"unequal overlap at {row.from_len}")
        session.tokens += row.tokens[len(overlap) :]
        self._check(session, row)
        session.counter, session.row = row.counter, row
        if row.finish:
            del self.sessions[row.session]
            self.finished.add(row.session)
        elif row.next is Next.WAIT:
            yield from self._block(session, (), self.script.chain(session, row.k))
        elif row.rows:
            branches = self.script.branches(session, row.proposal, row.k, row.rows)
            yield from self._block(session, row.proposal, branches)

    def _check(self, session: ScriptedSession, row: CommitRow) -> None:
        room = session.opened.max_len - len(session.tokens)
        if row.counter <= session.counter:
            self._blame(f"counter {row.counter} after {session.counter}")
        if len(session.tokens) > session.opened.max_len:
            self._blame("more tokens than max_len")
        if not row.finish and room < 1:
            self._blame("no finish at max_len")
        if len(row.proposal) > min(self.script.k_max, max(0, room - 1), session.opened.k):
            self._blame(f"{len(row.proposal)} proposed tokens with {room} left")
        if (row.next is Next.TOKENS) != bool(row.proposal):
            self._blame(f"next {row.next} with {len(row.proposal)} tokens")

    def _block(self, session: ScriptedSession, proposal: tuple[int, ...], branches: list[Branch]) -> Iterable[ToTarget]:
        base, session.blocks = len(session.tokens), session.blocks + 1
        opened, name = session.opened, fingerprint(len(session.tokens), proposal)
        yield BlockBatch((Block(opened.session, opened.epoch, session.blocks, base, name, tuple(branches)),))

    def _blame(self, what: str) -> None:
        self.violations.append(what)


class ScriptedStream(Stream):
    """The target's end of the link to a scripted draft."""

    def __init__(self, draft: ScriptedDraft, inbox: Inbox) -> None:
        self._draft = draft
        self._inbox = inbox
        self._closed = False

    @property
    def peer(self) -> str:
        return "scripted"

    @property
    def closed(self) -> bool:
        return self._closed

    def send(self, message: Message) -> None:
        if self._closed:
            raise LinkClosed("the scripted stream has ended")
        if not isinstance(message, Hello):
            for extra in self._draft.script.on_message():
                self._inbox.put(self, extra)
        for answer in self._draft.handle(message):
            self.deliver(answer)

    def deliver(self, message: ToTarget) -> None:
        for sent in self._draft.script.deliver(message):
            self._inbox.put(self, sent)

    def close(self, reason: str = "closed") -> None:
        if not self._closed:
            self._closed = True
            self._draft.sessions.clear()

    def break_off(self, reason: str) -> None:
        """The draft's side ends the stream."""
        self._closed = True
        self._inbox.put(self, StreamClosed(reason))


def load(row_credit: int = 256, session_credit: int = 64, draining: bool = False) -> Load:
    """A Load message."""
    return Load(row_credit, session_credit, draining=draining)
